"""docs/gate.md: its example is a configuration, and means what the page says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from iop_edge.config.effective import GateFilterName
from iop_edge.config.load import load
from iop_edge.gate import schema
from iop_edge.gate.hold import MAX_HELD_BYTES
from iop_edge.gate.options import GateOptions
from iop_edge.gate.tool_calls import MAX_ARGUMENT_CHARACTERS
from iop_shared.ids import ModelId, ProviderId, Target
from tests.edge.config.rig import sources

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


@pytest.mark.req("CFG-19", "GATE-3")
def test_the_example_of_the_page_loads_over_the_example_configuration_and_means_what_it_says():
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    base = (ROOT / "configs" / "edge.yaml").read_text(encoding="utf-8")
    result = load(sources(base, example), skip_secrets=True)
    assert "selector_matches_nothing" not in {problem.code for problem in result.warnings}
    options = GateOptions.freeze(result.config.openai.stream_evidence_gate, None)
    assert options is not None

    def acting(provider: str) -> list[str]:
        [target] = [
            target
            for group in result.config.models
            for owner, target in group.providers.items()
            if (group.id, owner) == ("smart", provider)
        ]
        return [
            f"{one.name} {one.enforcement}"
            for one in options.filters_at(
                model_group=ModelId("smart"),
                target=Target(target),
                provider_id=ProviderId(provider),
            )
            if one.is_enabled
        ]

    assert acting("gpu-a-vllm") == [
        "repeat_guard blocking",
        "schema_gate observe_only",
        "provider_error observe_only",
    ]
    assert acting("gpu-b-ollama") == ["repeat_guard observe_only", "schema_gate observe_only"]


@pytest.mark.req("GATE-4", "GATE-7")
def test_the_page_names_every_filter_and_the_bounds_as_they_are():
    assert all(f"| `{name}` |" in PAGE for name in get_args(GateFilterName))
    assert f"over {schema.MAX_SCHEMA_BYTES // 1024} KiB" in PAGE
    assert f"more than {schema._MAX_SUBSCHEMAS} subschemas or {schema._MAX_PATTERNS}" in PAGE
    arguments, held = MAX_ARGUMENT_CHARACTERS // 2**20, MAX_HELD_BYTES // 2**20
    assert f"Past {arguments} MiB of arguments, or {held} MiB in all" in PAGE


def test_the_links_of_the_page_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)
