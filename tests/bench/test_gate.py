from __future__ import annotations

from pathlib import Path

import pytest

from bench import gate
from bench.speed.page import NoPlace, with_figures
from bench.speed.shapes import Sample

COSTS_US = {"absent": 500.0, "off": 505.0, "on": 600.0}


def samples(rounds: int = 3) -> list[Sample]:
    """Every shape under every gate; a round costs a tenth more than the one before."""
    return [
        Sample(
            contender=name,
            shape=shape,
            round=number,
            requests=10,
            cpu_us=cost * (1 + number / 10),
            parts_us={"edge": cost * (1 + number / 10) / 2, "node": 1.0},
            p50_ms=5.0,
            p99_ms=6.0,
            first_byte_ms=2.5 if name == "on" else 2.0,
        )
        for shape in gate.SHAPES
        for name, cost in COSTS_US.items()
        for number in range(rounds)
    ]


@pytest.mark.req("GATE-1")
def test_a_ratio_is_taken_within_its_round_and_a_piece_is_a_fiftieth() -> None:
    found = gate.figures(samples())["burst16"]
    assert found["on/off"] == {"median": 1.188, "low": 1.188, "high": 1.188}
    assert found["off/absent edge"]["median"] == 1.01
    assert found["chunk_us"] == {"absent": 11.0, "off": 11.11, "on": 13.2}
    assert found["added_first_byte_ms"] == 0.5


def test_the_figures_stand_in_the_docs_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "gate.md"
    page.write_text(f"# Before\n\n{gate.BEGIN}\nold\n<!-- end of figures -->\n\nAfter\n")
    gate.print_into_docs(gate.figures(samples()), 3, page)
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("\n\nAfter\n")
    assert "old" not in text
    assert "| all at once, 16 | 11.0 · 11.1 · 13.2 | 1.01 (1.01 to 1.01) | 1.19" in text
    assert "| 0.5 ms |" in text
    assert "Medians of 3 interleaved rounds" in text


def test_the_page_of_the_docs_has_a_place_for_them() -> None:
    assert with_figures(gate.PAGE.read_text(), "here", gate.BEGIN).count("\nhere\n") == 1
    with pytest.raises(NoPlace):
        with_figures("", "here", gate.BEGIN)
