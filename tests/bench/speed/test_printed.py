"""How a result is judged and printed: the table, the picture, the page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.speed import chart, page, table, targets
from bench.speed.figures import Spread
from bench.speed.limits import LIMITS
from bench.speed.peers import STARTS
from bench.speed.result import Machine, Result
from bench.speed.shapes import SHAPES, Memory, Sample
from bench.speed.targets import Judged, Target

NAMES = ("direct", *STARTS)


def result(**found: object) -> Result:
    samples = [
        Sample(name, shape, number, 100, 10.0 * (at + 1) + number, {}, 1.0 + at, 2.0 + at, 0.5)
        for number in range(3)
        for shape in SHAPES
        for at, name in enumerate(NAMES)
    ]
    of_all = Result(
        machine=Machine("a <fast> & small one", 2, "3.11.7", 0.5),
        samples=samples,
        memory={name: Memory(100.0, 90.0) for name in NAMES},
        limits={name: [1.0, 2.0, 3.0] for name in LIMITS},
        absent={},
    )
    return msgspec.structs.replace(of_all, **found)


def verdict(median: float | None) -> str:
    target = Target("a row", "a figure", lambda _: None, must=2.0, aim=1.5)
    spread = None if median is None else Spread(median, 0, 9)
    return Judged(target, spread).verdict


@pytest.mark.parametrize(
    ("median", "expected"),
    [(1.5, "aim"), (1.51, "must"), (2.0, "must"), (2.01, "missed"), (None, "not measured")],
)
def test_a_figure_is_judged_by_its_median_and_a_bound_belongs_to_what_keeps_it(
    median: float | None, expected: str
) -> None:
    assert verdict(median) == expected


def test_every_target_is_measured_by_a_whole_run_and_aims_no_lower_than_it_must() -> None:
    for one in targets.judge(result()):
        assert one.spread is not None, one.target
        assert one.target.aim <= one.target.must


def test_what_took_no_part_is_not_measured_and_not_met() -> None:
    found = targets.judge(result(samples=[], limits={}))
    assert {one.verdict for one in found} == {"not measured"}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1 / 40, "×", "1/40"),
        (1 / 5.5, "×", "1/5.5"),
        (0.65, "×", "0.65"),
        (0.4, "×", "0.40"),
        (1.3, "×", "1.30"),
        (0.0, "×", "0.00"),
        (-0.2, "×", "-0.20"),
        (0.5, "ms", "0.5 ms"),
        (150.0, "MB", "150 MB"),
        (31.88, "KB", "31.9 KB"),
    ],
)
def test_a_figure_is_shown_as_people_read_it(value: float, unit: targets.Unit, text: str) -> None:
    assert table.shown(value, unit) == text


def test_every_row_of_both_tables_has_every_column() -> None:
    for rows in (table.targets(targets.judge(result())), table.contenders(result())):
        assert len({len(row) for row in rows}) == 1
        assert table.markdown(rows).count("\n") == len(rows)
        assert len(table.plain(rows).splitlines()) == len(rows)


def test_everybody_has_a_title_and_stands_in_the_table() -> None:
    assert set(table.TITLES) == set(NAMES)
    assert len(table.contenders(result())) == 1 + len(NAMES)


def test_the_picture_is_well_formed_and_has_a_bar_for_everybody_in_each_panel() -> None:
    drawn = ElementTree.fromstring(chart.svg(result()))
    bars = [one for one in drawn.iter() if one.tag.endswith("rect")]
    assert len(bars) == len(chart.PANELS) * (len(NAMES) - 1)
    width = float(drawn.attrib["width"])
    for bar in bars:
        assert 0 < float(bar.attrib["x"]) + float(bar.attrib["width"]) < width
        assert float(bar.attrib["width"]) > 0


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    assert ElementTree.fromstring(chart.svg(result(samples=[]))).tag.endswith("svg")


def test_a_page_keeps_what_people_wrote_and_loses_the_old_figures(tmp_path: Path) -> None:
    written = tmp_path / "performance.md"
    written.write_text(f"# Ours\n\n{page.BEGIN}\nold\n{page.END}\n\n## Theirs\n")
    page.write(result(absent={"nginx": "not here"}), written, tmp_path / "drawn.svg")
    text = written.read_text()
    assert text.startswith(f"# Ours\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\n## Theirs\n")
    assert "\nold\n" not in text
    assert "| LiteLLM |" in text
    assert "Left out: nginx: not here" in text
    assert (tmp_path / "drawn.svg").exists()


def test_a_page_without_a_place_for_them_is_left_alone(tmp_path: Path) -> None:
    written = tmp_path / "performance.md"
    written.write_text(f"# Ours\n\n{page.BEGIN}\n")
    with pytest.raises(page.NoPlace, match="end of figures"):
        page.write(result(), written, tmp_path / "drawn.svg")
    assert written.read_text() == f"# Ours\n\n{page.BEGIN}\n"
    assert not (tmp_path / "drawn.svg").exists()


def test_the_page_of_the_docs_has_a_place_for_them() -> None:
    assert page.with_figures(page.PAGE.read_text(), "here").count("\nhere\n") == 1


def test_a_result_survives_being_kept() -> None:
    kept = msgspec.json.encode(result())
    assert msgspec.json.decode(kept, type=Result) == result()
