from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from iop_edge.config.effective import EffectiveConfig
from iop_edge.refresh.diff import diff
from iop_edge.refresh.plan import plan
from iop_edge.refresh.receipt import (
    ErrorReport,
    GenerationStep,
    NodeReport,
    RefreshResult,
    drafted,
    receipt,
    rejection,
)
from iop_shared.ids import Generation, NodeId

Touch = Callable[[EffectiveConfig, str], EffectiveConfig]

COLLECTIONS = {
    "changes",
    "live_paths",
    "restart_required_paths",
    "changed_nodes",
    "changed_providers",
    "changed_models",
    "nodes",
    "errors",
}
SEVEN = Generation(7)


def as_json(result: RefreshResult) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return decoded


def receipt_of(before: EffectiveConfig, after: EffectiveConfig) -> RefreshResult:
    return receipt(
        drafted(
            plan(diff(before, after, same_secret=lambda _: True), payload_changes=frozenset()),
            mode="apply",
            running=SEVEN,
            candidate_digest="sha256:00",
        ),
        after=Generation(8),
        nodes=[
            NodeReport(node_id=NodeId("b"), outcome="refused", generation=SEVEN, detail="why"),
            NodeReport(node_id=NodeId("a"), outcome="acknowledged", generation=Generation(8)),
        ],
    )


@pytest.mark.req("REF-2")
def test_every_collection_is_present_in_every_outcome(lab: EffectiveConfig, touch: Touch) -> None:
    results = [
        receipt_of(lab, lab),
        receipt_of(lab, touch(lab, "models[].display_name")),
        receipt_of(lab, touch(lab, "server.listen")),
        rejection([], mode=None, running=SEVEN),
    ]
    shapes = [as_json(result) for result in results]
    for shape in shapes:
        assert shape.keys() == shapes[0].keys()
        assert all(isinstance(shape[name], list) for name in COLLECTIONS)
    assert [shape["status"] for shape in shapes] == [
        "applied",
        "applied",
        "restart_required",
        "rejected",
    ]


@pytest.mark.req("REF-2")
def test_no_field_of_a_result_can_be_left_out_by_its_type() -> None:
    described = msgspec.inspect.type_info(RefreshResult)
    assert isinstance(described, msgspec.inspect.StructType)
    names = {field.encode_name for field in described.fields}
    assert names >= COLLECTIONS
    for field in described.fields:
        if field.encode_name in COLLECTIONS:
            assert isinstance(field.type, msgspec.inspect.VarTupleType)


@pytest.mark.req("REF-12")
def test_a_change_is_written_as_the_interface_has_it(lab: EffectiveConfig, touch: Touch) -> None:
    live = as_json(receipt_of(lab, touch(lab, "nodes[].providers[].capacity")))
    assert live["changes"] == [
        {
            "path": "nodes[gpu-a].providers[p-a].capacity",
            "class": "live",
            "old": 8,
            "new": 9,
            "reason": None,
        }
    ]
    restart = as_json(receipt_of(lab, touch(lab, "edge.name")))
    assert restart["changes"][0]["class"] == "restart"
    assert restart["changes"][0]["reason"]
    assert restart["restart_required_paths"] == ["edge.name"]


@pytest.mark.req("REF-2")
def test_nodes_and_errors_are_ordered() -> None:
    result = receipt(
        drafted(
            plan((), payload_changes=frozenset()),
            mode="apply",
            running=SEVEN,
            candidate_digest="sha256:00",
        ),
        after=SEVEN,
        nodes=[NodeReport(node_id=NodeId(name), outcome="unchanged") for name in ("c", "a", "b")],
    )
    assert [node.node_id for node in result.nodes] == ["a", "b", "c"]
    rejected = rejection(
        [
            ErrorReport(code="z", path="nodes[b]", message="…"),
            ErrorReport(code="z", path="nodes[a]", file="edge.yaml", line=9, message="…"),
            ErrorReport(code="y", path="nodes[a]", file="edge.yaml", line=4, message="…"),
        ],
        mode="apply",
        running=SEVEN,
        omitted=2,
    )
    assert [(error.path, error.line) for error in rejected.errors] == [
        ("nodes[a]", 4),
        ("nodes[a]", 9),
        ("nodes[b]", None),
    ]
    assert rejected.generation == GenerationStep(before=SEVEN, after=SEVEN)
