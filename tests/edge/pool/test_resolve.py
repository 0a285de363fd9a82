"""What a caller's model name means."""

from types import MappingProxyType

import pytest
from msgspec.structs import replace

from iop_edge.pool.catalog import Attribution, Catalog, DirectTarget
from iop_edge.pool.resolve import resolve
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, ModelId, NodeId, RouteId, Target
from tests.edge.pool.rig import TUNNEL, catalog, spec


def direct(route_id: str | None) -> DirectTarget:
    return DirectTarget(
        node_id=NodeId("n"),
        adapter=AdapterKey("a"),
        target=Target("t"),
        attribution=Attribution("provider", "lab"),
        abilities=TUNNEL,
        route_id=None if route_id is None else RouteId(route_id),
    )


def with_route(*, fallback: bool) -> Catalog:
    return replace(
        catalog([spec("a")]),
        routes=MappingProxyType({ModelId("small"): direct("r")}),
        fallback=direct(None) if fallback else None,
    )


@pytest.mark.req("CFG-28")
def test_a_model_group_comes_first_then_a_route_then_the_fallback():
    known = with_route(fallback=True)
    assert resolve(known, ModelId("m")) is known.models[ModelId("m")]
    assert resolve(known, ModelId("small")) is known.routes[ModelId("small")]
    assert resolve(known, ModelId("anything")) is known.fallback


@pytest.mark.req("CFG-27", "CFG-28")
@pytest.mark.parametrize("name", ["a", "adapter-of-a", "m-on-a", "r", "n", "other", ""])
def test_no_provider_adapter_target_route_or_node_id_is_a_model_name(name: str):
    with pytest.raises(Fault) as caught:
        resolve(with_route(fallback=False), ModelId(name))
    assert caught.value.code is Code.MODEL_NOT_FOUND
    assert caught.value.param == "model"
