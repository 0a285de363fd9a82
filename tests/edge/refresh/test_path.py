from __future__ import annotations

import pytest

from iop_edge.refresh.path import ConfigPath


@pytest.mark.req("CFG-4")
def test_a_path_reads_as_the_contract_writes_it() -> None:
    path = ConfigPath().field("nodes").entry("gpu-a").field("providers").entry("p1")
    assert str(path.field("capacity")) == "nodes[gpu-a].providers[p1].capacity"


@pytest.mark.parametrize(
    ("entry_id", "expected"),
    [
        ("gpu-a", "gpu-a"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen3:32b", "qwen3:32b"),
        ("모델", "모델"),
        ("a b", '"a b"'),
        ("a[0]", '"a[0]"'),
        ('say "x"', '"say \\"x\\""'),
        ("line\nbreak", '"line\\nbreak"'),
        ("", '""'),
    ],
)
@pytest.mark.req("CFG-4")
def test_only_an_id_that_would_be_misread_is_quoted(entry_id: str, expected: str) -> None:
    assert str(ConfigPath().field("models").entry(entry_id)) == f"models[{expected}]"


def test_an_entry_is_named_only_by_a_path_that_leads_through_its_collections() -> None:
    capacity = (
        ConfigPath().field("nodes").entry("a").field("providers").entry("p").field("capacity")
    )
    assert capacity.entry_of("nodes") == "a"
    assert capacity.entry_of("nodes", "providers") == "p"
    assert capacity.entry_of("models") is None
    mapping = ConfigPath().field("models").entry("m").field("providers").entry("p")
    assert mapping.entry_of("nodes", "providers") is None
    assert mapping.entry_of("models") == "m"
    assert ConfigPath().field("nodes").entry_of("nodes") is None


def test_the_last_entry_is_known_only_where_the_path_ends_at_one() -> None:
    mapping = ConfigPath().field("models").entry("m")
    assert mapping.last_entry == "m"
    assert mapping.field("display_name").last_entry is None
    assert ConfigPath().last_entry is None
