from __future__ import annotations

from collections.abc import Callable

import pytest

from iop_edge.config.effective import EffectiveConfig
from iop_edge.refresh.diff import diff
from iop_edge.refresh.plan import Plan, plan
from iop_shared.ids import NodeId

Touch = Callable[[EffectiveConfig, str], EffectiveConfig]


def plan_of(lab: EffectiveConfig, touch: Touch, *patterns: str) -> Plan:
    after = lab
    for pattern in patterns:
        after = touch(after, pattern)
    changes = diff(lab, after, same_secret=lambda _: True)
    return plan(changes, payload_changes={NodeId("gpu-a")})


@pytest.mark.req("REF-2", "REF-3")
def test_live_changes_alone_can_be_applied(lab: EffectiveConfig, touch: Touch) -> None:
    made = plan_of(
        lab,
        touch,
        "nodes[].providers[].capacity",
        "models[].context_window_tokens",
        "nodes[].runtime.concurrency",
    )
    assert made.status == "applied"
    assert made.live_paths == (
        "models[smart].context_window_tokens",
        "nodes[gpu-a].providers[p-a].capacity",
        "nodes[gpu-a].runtime.concurrency",
    )
    assert made.restart_paths == ()
    assert made.changed_nodes == ("gpu-a",)
    assert made.changed_providers == ("p-a",)
    assert made.changed_models == ("smart",)
    assert made.nodes_to_push == {"gpu-a"}


@pytest.mark.req("REF-7")
def test_one_restart_change_holds_the_live_ones_back_and_both_are_listed(
    lab: EffectiveConfig, touch: Touch
) -> None:
    made = plan_of(lab, touch, "nodes[].providers[].capacity", "server.listen")
    assert made.status == "restart_required"
    assert made.needs_restart
    assert made.live_paths == ("nodes[gpu-a].providers[p-a].capacity",)
    assert made.restart_paths == ("server.listen",)
    assert made.nodes_to_push == frozenset()


@pytest.mark.req("REF-2", "REF-8")
def test_no_change_is_an_apply_that_changes_nothing() -> None:
    made = plan((), payload_changes=frozenset())
    assert made == Plan("applied", (), (), (), (), (), (), frozenset())


@pytest.mark.req("REF-2")
def test_a_model_that_maps_a_provider_anew_is_a_changed_model_and_no_changed_provider(
    lab: EffectiveConfig, touch: Touch
) -> None:
    made = plan_of(lab, touch, "models[].providers[]")
    assert (made.changed_models, made.changed_providers) == (("smart",), ())
