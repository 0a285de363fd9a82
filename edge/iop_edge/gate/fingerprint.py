"""A name for a repeated unit that does not tell what it says."""

from __future__ import annotations

from hashlib import blake2b

_DIGEST_BYTES = 8
_LONGEST_TURNED = 2048


def fingerprint(unit: str, key: bytes) -> str:
    """16 hexadecimal digits: equal for one unit, at whichever of its characters it begins.

    A loop has no first character of its own ("ab ab ab" is "b ab ab a"), so the least of all its
    rotations is taken. Equal units can be told equal by who has the key, of 1 to 64 bytes; without
    it nobody can tell whether a guess is right.
    """
    least = unit
    if len(unit) <= _LONGEST_TURNED:
        twice = unit + unit
        least = min((twice[at : at + len(unit)] for at in range(len(unit))), default="")
    return blake2b(
        least.encode("utf-8", "surrogatepass"), key=key, digest_size=_DIGEST_BYTES
    ).hexdigest()
