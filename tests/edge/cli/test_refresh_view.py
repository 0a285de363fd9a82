from __future__ import annotations

import io

import pytest
from msgspec import structs
from rich.console import Console

from iop_edge.cli.refresh_view import RefreshView
from iop_edge.refresh.receipt import NodeReport, Outcome, RefreshResult
from iop_shared.ids import NodeId
from tests.edge.cli.test_refresh import result


def report(node_id: str, outcome: Outcome = "acknowledged") -> NodeReport:
    return NodeReport(node_id=NodeId(node_id), outcome=outcome)


def told(*reports: NodeReport, is_terminal: bool) -> tuple[str, RefreshResult]:
    """Everything that was printed of a refresh that told these nodes, and its result."""
    out = Console(file=io.StringIO(), force_terminal=is_terminal, color_system=None, width=100)
    whole = structs.replace(result(), nodes=tuple(reports))
    with RefreshView(out) as view:
        view.begin(structs.replace(whole, nodes=()), tuple(one.node_id for one in reports))
        for one in reports:
            view.node(one)
    view.end(whole)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue(), whole


@pytest.mark.req("REF-9", "REF-12")
def test_what_changes_comes_first_then_each_node_then_the_outcome() -> None:
    text, _ = told(report("a"), report("b", "refused"), is_terminal=False)
    assert text.splitlines() == [
        "live    nodes[gpu-a].providers[p].capacity: 8 → 12",
        "node    a: acknowledged",
        "node    b: refused",
        "applied: 1 change, generation 7 → 8",
    ]


@pytest.mark.req("REF-9")
def test_a_terminal_says_who_is_still_waited_for() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    with RefreshView(out) as view:
        names = tuple(NodeId(f"n{number}") for number in range(5))
        view.begin(result(), names)
        assert view._status is not None
        assert view._status.status == "0 of 5 nodes have answered; waiting for n0, n1, n2 …"
        view.node(report("n1"))
        assert view._status.status == "1 of 5 nodes have answered; waiting for n0, n2, n3 …"


@pytest.mark.req("REF-9")
def test_what_a_node_says_cannot_steer_the_terminal() -> None:
    node = structs.replace(report("a", "refused"), detail="no_ca: \x1b]0;title\x07\x9b31m\nnode b")
    text, _ = told(node, is_terminal=False)
    assert r"node    a: refused: no_ca: \x1b]0;title\x07\x9b31m\nnode b" in text.splitlines()


def test_a_name_in_brackets_is_waited_for_as_it_is_written() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    with RefreshView(out) as view:
        view.begin(result(), (NodeId("[/a]"),))
        view.node(report("[/a]"))
    assert isinstance(out.file, io.StringIO)
    assert "waiting for [/a]" in out.file.getvalue()


@pytest.mark.req("REF-9")
def test_of_many_nodes_a_terminal_names_only_those_that_fail() -> None:
    reports = [report(f"n{number}") for number in range(1000)]
    reports[500] = report("n500", "timed_out")
    text, _ = told(*reports, is_terminal=True)
    assert "✗ n500: timed out" in text
    assert "✓" not in text
    text, _ = told(*reports, is_terminal=False)
    assert text.count("acknowledged") == 999
