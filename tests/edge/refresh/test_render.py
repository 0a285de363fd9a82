from __future__ import annotations

import pytest

from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.view import REDACTED
from iop_edge.refresh.render import canonical, shown
from iop_edge.refresh.shape import effective_shape


@pytest.mark.req("SEC-1", "CFG-23")
def test_a_whole_config_is_shown_as_plain_json_in_a_stable_order(lab: EffectiveConfig) -> None:
    config = shown(effective_shape(), lab)
    assert canonical(config) == canonical(shown(effective_shape(), lab))
    assert config["nodes"][0]["token"] == {"env": "TOKEN_GPU_A"}
    assert config["protocol_profiles"]["lab_vllm"]["capabilities"] == ["chat", "models"]
    assert config["protocol_profiles"]["lab_vllm"]["extensions"] == {
        "flag": True,
        "nested": {"api_key": REDACTED},
    }
    assert "canary" not in str(config)


def test_what_means_the_same_to_json_has_the_same_bytes() -> None:
    assert canonical({"b": 1, "a": [True]}) == canonical({"a": [True], "b": 1})
    assert canonical({"a": 1}) != canonical({"a": True})
