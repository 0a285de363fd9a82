"""Which places of a tree hold secrets, judged by the steps alone (CFG-2)."""

from __future__ import annotations

from iop_edge.config.yaml12.places import Steps

_CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_CREDENTIAL_PARTS = ("key", "token", "secret")


def is_credential_header(name: str) -> bool:
    """Whether a header's value is a secret, by its name."""
    folded = name.casefold()
    return folded in _CREDENTIAL_HEADERS or any(part in folded for part in _CREDENTIAL_PARTS)


def is_secret(steps: Steps) -> bool:
    """Whether what stands at these steps is a secret, or a part of a reference to one."""
    match steps:
        case ("nodes", _, "token", *_):
            return True
        case ("protocol_profiles", _, "auth"):
            return True
        case ("protocol_profiles", _, "auth", field, *_):
            return field not in ("header", "scheme")
        case ("nodes", _, "adapters" | "providers", _, "headers", str(name), *_):
            return is_credential_header(name)
        case _:
            return False


def is_in_reference(steps: Steps) -> bool:
    """Whether these steps lead into a secret reference, so that plain names stand there."""
    return is_secret(steps) and steps[-1] in ("env", "file", "sha256", "node_env", "node_file")
