from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from iop_edge.cli.admin_client import Unreachable
from iop_edge.cli.status import EXIT_UNREACHABLE, _watch
from iop_edge.cli.status_view import bar, screen
from iop_edge.cli.status_view import lines as plain
from iop_edge.serve.admin.shapes import EdgeStatus
from iop_shared.ids import ModelId, NodeId, ProviderId
from tests.edge.cli.test_status import BUSY, IDLE


def terminal(height: int = 40, width: int = 110) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system=None,
        width=width,
        height=height,
        soft_wrap=True,
    )


def shown(edge: EdgeStatus, height: int | None = None, width: int = 110) -> list[str]:
    out = terminal(width=width)
    out.print(screen(edge, height=height))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("taken", "slots", "drawn"),
    [
        (0, 4, "░░░░"),
        (3, 4, "███░"),
        (4, 4, "████"),
        (1, 160, "█░░░░░░░░░░░░░░░"),
        (159, 160, "███████████████░"),
        (160, 160, "████████████████"),
        (6, 4, "██████"),
        (40, 4, "████████████████"),
        (2, 0, "██"),
        (0, 0, ""),
    ],
)
def test_a_bar_is_full_only_when_every_slot_is_taken(taken: int, slots: int, drawn: str) -> None:
    assert bar(taken, slots).plain == drawn


@pytest.mark.req("POOL-7")
def test_what_runs_beyond_a_lowered_capacity_is_red() -> None:
    assert [(span.style, span.end - span.start) for span in bar(6, 4).spans] == [
        ("yellow", 4),
        ("red", 2),
    ]


@pytest.mark.req("REF-9", "REF-12")
def test_slots_are_bars_and_what_lags_or_failed_is_said() -> None:
    text = "\n".join(shown(BUSY))
    assert "8/8    ████████" in text
    assert "7 (wants 8)" in text
    assert "gpu-a: no_ca: missing" in text
    assert "1 draining (1)" in text
    assert "restart needed for server.listen" in text


@pytest.mark.parametrize("width", [80, 60, 50])
def test_on_a_narrow_terminal_the_bars_go_and_the_numbers_stay(width: int) -> None:
    provider = structs.replace(
        BUSY.providers[0],
        provider_id=ProviderId("gpu-b-ollama-qwen3"),
        node_id=NodeId("rack-17-gpu-b"),
        health="unavailable",
    )
    lines = shown(structs.replace(BUSY, providers=(provider,)), width=width)
    head = next(at for at, line in enumerate(lines) if "SLOTS" in line)
    assert "8/8" in lines[head + 1]
    assert "1/2" in lines[head + 1]
    assert "█" not in lines[head + 1]
    assert max(map(len, lines[head : head + 2])) <= width


@pytest.mark.req("REF-9")
def test_what_a_node_says_cannot_steer_the_terminal() -> None:
    node = structs.replace(BUSY.nodes[0], last_failure="no_ca:\x1b[2J\x9b1m\nnode x")
    edge = structs.replace(BUSY, nodes=(node,))
    for line in (*shown(edge), *plain(edge)):
        assert line.isprintable()
        assert not line.startswith("node x")


@pytest.mark.req("POOL-8")
def test_slots_that_nobody_can_take_are_no_bar() -> None:
    gone = structs.replace(BUSY.providers[0], status="unavailable", in_flight=0, long_in_flight=0)
    text = "\n".join(shown(structs.replace(BUSY, providers=(gone,))))
    (line,) = (line for line in text.splitlines() if line.startswith("p "))
    assert "0/8" in line
    assert "░" not in line


def many(count: int) -> EdgeStatus:
    """One provider in a hundred is busy; everything else is quiet."""
    return structs.replace(
        BUSY,
        last_error=None,
        nodes=tuple(
            structs.replace(BUSY.nodes[0], node_id=NodeId(f"n{number}"), last_failure=None)
            for number in range(count)
        ),
        providers=tuple(
            structs.replace(
                BUSY.providers[0],
                provider_id=ProviderId(f"p{number:04}"),
                status="busy" if number % 100 == 99 else "available",
                in_flight=8 if number % 100 == 99 else 0,
            )
            for number in range(count)
        ),
        models=tuple(
            structs.replace(BUSY.models[0], model_id=ModelId(f"m{number}"))
            for number in range(count)
        ),
    )


@pytest.mark.parametrize("height", [8, 12, 24, 60])
def test_it_fits_the_screen_and_leaves_out_what_is_quiet(height: int) -> None:
    lines = shown(many(400), height=height)
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "PROVIDER" in text
    assert "more" in text
    if height >= 24:
        assert all(f"p{number:04}" in text for number in (99, 199, 299, 399))


def test_a_thousand_failures_leave_room_for_the_rest() -> None:
    failing = tuple(structs.replace(one, last_failure="no_ca: missing") for one in many(1000).nodes)
    paths = tuple(f"nodes[n{number}].alias" for number in range(1000))
    edge = structs.replace(many(1000), nodes=failing, pending_restart_paths=paths)
    lines = shown(edge, height=30)
    assert len(lines) <= 30
    assert sum("no_ca: missing" in line for line in lines) == 4
    assert sum("… and 996 more of these" in line for line in lines) == 2
    assert any(line.startswith("PROVIDER") for line in lines)
    plain_lines = list(plain(edge))
    assert sum(line.startswith("restart needed for") for line in plain_lines) == 1000


class Script:
    """A client that gives one answer after another, and is then interrupted."""

    address = "127.0.0.1:1"

    def __init__(self, *answers: EdgeStatus | Exception) -> None:
        self._answers: Iterator[EdgeStatus | Exception] = iter(answers)

    def get(self, path: str) -> Any:
        answer = next(self._answers, KeyboardInterrupt())
        if isinstance(answer, BaseException):
            raise answer
        return msgspec.json.decode(msgspec.json.encode(answer))


LOST = Unreachable("127.0.0.1:1", "connection refused")


def test_watching_goes_on_when_the_edge_is_gone_and_shows_it_again() -> None:
    out = terminal()
    assert _watch(Script(IDLE, LOST, BUSY), 0.0, out) == 0  # type: ignore[arg-type]  # a client
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    at = [text.index(mark) for mark in ("no nodes are configured", LOST.reason, "PROVIDER")]
    assert at == sorted(at)


def test_watching_an_edge_that_stays_away_ends_as_unreachable() -> None:
    assert _watch(Script(IDLE, LOST), 0.0, terminal()) == EXIT_UNREACHABLE  # type: ignore[arg-type]  # a client
    with pytest.raises(Unreachable):
        _watch(Script(LOST), 0.0, terminal())  # type: ignore[arg-type]  # a client
