"""Which frames are legal when, and which protocol both ends will speak.

House rule: this file never knows which end it is on. The tables below are the whole truth; a
frame that no row allows ends the session with `protocol_error`.

  phase      | first frame from the peer | afterwards          | ends by
  OPENING    | its greeting, once        | -                   | refusal, silence
  OPEN       | -                         | all but a greeting  | goodbye, loss
  CLOSING    | -                         | all but a greeting  | the last attempt's end, deadline
  CLOSED     | -                         | nothing             | -
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Protocols(NamedTuple):
    """A range of protocol versions, both ends included."""

    min: int
    max: int


SPOKEN = Protocols(1, 1)
"""What this software speaks."""


class Phase(enum.Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Kind(enum.Enum):
    """What a frame is to the handshake."""

    GREETING = "greeting"
    TRAFFIC = "traffic"
    GOODBYE = "goodbye"


_NEXT: dict[tuple[Phase, Kind], Phase] = {
    (Phase.OPENING, Kind.GREETING): Phase.OPEN,
    (Phase.OPEN, Kind.TRAFFIC): Phase.OPEN,
    (Phase.OPEN, Kind.GOODBYE): Phase.CLOSING,
    (Phase.CLOSING, Kind.TRAFFIC): Phase.CLOSING,
    (Phase.CLOSING, Kind.GOODBYE): Phase.CLOSING,
}


class ProtocolError(Exception):
    """The peer broke a rule of the session. Holds facts only, never a frame's content."""


def negotiate(ours: Protocols, theirs: Protocols) -> int | None:
    """The highest version that both speak; None where the ranges do not meet."""
    highest = min(ours.max, theirs.max)
    return highest if highest >= max(ours.min, theirs.min) else None


class Handshake:
    """The phase of one session, moved by the peer's frames and by our own decision to close."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.OPENING

    def receive(self, kind: Kind) -> None:
        """The peer sent a frame of this kind. Raises ProtocolError where it may not."""
        following = _NEXT.get((self.phase, kind))
        if following is None:
            raise ProtocolError(f"a {kind.value} frame while the session is {self.phase.value}")
        self.phase = following

    def close(self) -> None:
        """Our end says goodbye: no new attempts, the running ones may end."""
        if self.phase in (Phase.OPENING, Phase.OPEN):
            self.phase = Phase.CLOSING

    def end(self) -> None:
        self.phase = Phase.CLOSED
