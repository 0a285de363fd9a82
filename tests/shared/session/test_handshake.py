from __future__ import annotations

import pytest

from iop_shared.session.handshake import (
    Handshake,
    Kind,
    Phase,
    ProtocolError,
    Protocols,
    negotiate,
)


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [
        (Protocols(1, 1), Protocols(1, 1), 1),
        (Protocols(1, 3), Protocols(2, 5), 3),
        (Protocols(2, 5), Protocols(1, 3), 3),
        (Protocols(1, 1), Protocols(2, 3), None),
        (Protocols(2, 3), Protocols(1, 1), None),
        (Protocols(1, 1), Protocols(0, 0), None),
    ],
)
def test_both_speak_the_highest_version_that_both_know(
    ours: Protocols, theirs: Protocols, spoken: int | None
) -> None:
    assert negotiate(ours, theirs) == spoken


def test_traffic_before_the_greeting_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="traffic frame while the session is opening"):
        Handshake().receive(Kind.TRAFFIC)


def test_a_second_greeting_is_a_protocol_error() -> None:
    handshake = Handshake()
    handshake.receive(Kind.GREETING)
    with pytest.raises(ProtocolError, match="greeting frame while the session is open"):
        handshake.receive(Kind.GREETING)


def test_runs_that_are_under_way_may_end_after_a_goodbye() -> None:
    handshake = Handshake()
    handshake.receive(Kind.GREETING)
    handshake.receive(Kind.GOODBYE)
    handshake.receive(Kind.TRAFFIC)
    assert handshake.phase is Phase.CLOSING


@pytest.mark.parametrize("kind", list(Kind))
def test_nothing_is_legal_after_the_end(kind: Kind) -> None:
    handshake = Handshake()
    handshake.end()
    with pytest.raises(ProtocolError):
        handshake.receive(kind)
