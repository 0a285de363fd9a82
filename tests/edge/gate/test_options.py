"""What a request takes with it from its start."""

import pytest

from iop_edge.config.effective import GateFilter, GateSelector, StreamEvidenceGate
from iop_edge.gate.options import GateOptions
from iop_shared.ids import ModelId, ProviderId, Target

GATE = StreamEvidenceGate(
    enabled=True,
    max_request_fault_recovery=2,
    max_strategy_fault_recovery=1,
    max_ingress_snapshot_bytes=4096,
    environment="dev-corp",
    filters=(
        GateFilter(
            filter="repeat_guard",
            capability="output.repeat_guard",
            selectors=(GateSelector(environment="dev-corp", enforcement="observe_only"),),
        ),
    ),
)


@pytest.mark.req("GATE-1", "CFG-19")
def test_a_disabled_gate_freezes_nothing():
    assert GateOptions.freeze(StreamEvidenceGate(), 1000) is None


@pytest.mark.req("GATE-2", "REF-11")
def test_bounds_environment_filters_and_window_are_frozen_together():
    options = GateOptions.freeze(GATE, 1000)
    assert options == GateOptions(
        max_request_recoveries=2,
        max_strategy_recoveries=1,
        max_ingress_snapshot_bytes=4096,
        environment="dev-corp",
        filters=GATE.filters,
        context_window_tokens=1000,
    )
    with pytest.raises(AttributeError):
        options.max_request_recoveries = 3


@pytest.mark.req("GATE-3", "CFG-19")
def test_a_filter_is_asked_for_at_a_target_and_looked_up_the_second_time():
    options = GateOptions.freeze(GATE, None)
    assert options is not None
    asked = {
        "model_group": ModelId("m"),
        "target": Target("t"),
        "provider_id": ProviderId("p"),
    }
    [found] = options.filters_at(**asked)
    assert (found.name, found.enforcement) == ("repeat_guard", "observe_only")
    again = GateOptions.freeze(GATE, 1000)
    assert again is not None
    assert again.filters_at(**asked) is options.filters_at(**asked)
