"""Why a payload cannot be built. Told to the edge as it is, so it holds no secret value."""

from __future__ import annotations


class PayloadRefused(Exception):
    """A payload, or a part of it, cannot be built (NODE-3).

    `code` is stable, `reason` is one sentence for people that names the part and says what would
    be right. Neither holds a secret, nor an address with its userinfo or query.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
