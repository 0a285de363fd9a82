"""The result as a picture: CPU of a request, one bar a contender, on a logarithmic scale.

Plain SVG by hand: small, sharp at every size, and readable on dark and on light pages.
"""

from __future__ import annotations

from math import log10
from xml.sax.saxutils import escape

from bench.speed import figures
from bench.speed.result import Result
from bench.speed.table import TITLES

PANELS = {
    "plain16": "a plain request, 16 at once",
    "paced64": "a stream of 50 pieces, 5 ms apart, 64 at once",
}
_WIDTH, _NAMES, _VALUES = 760, 140, 90
_BAR, _STEP, _HEAD, _GAP = 18, 26, 34, 18

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.value { font-variant-numeric: tabular-nums; }
.bar { fill: #9aa4b2; }
.ours { fill: #2f6feb; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .bar { fill: #5b6673; }
  .ours { fill: #4c8dff; }
  .spread { stroke: #e6edf3; }
}
""".strip()


def svg(result: Result) -> str:
    """One panel a shape, the cheapest contender on top; whiskers reach from lowest to highest."""
    parts: list[str] = []
    top = 0
    for shape, title in PANELS.items():
        found = [
            (name, spread)
            for name in TITLES
            if name != "direct"
            and (spread := figures.cpu_us(result.samples, shape, name)) is not None
        ]
        if not found:
            continue
        found.sort(key=lambda one: one[1].median)
        scale = _Scale(min(s.low for _, s in found), max(s.high for _, s in found))
        parts.append(_text(0, top + 16, f"CPU of {title} (logarithmic)", "title"))
        for at, (name, spread) in enumerate(found):
            y = top + _HEAD + at * _STEP
            middle = y + _BAR / 2
            end, low, high = (scale.x(v) for v in (spread.median, spread.low, spread.high))
            kind = "bar ours" if name == "iop" else "bar"
            parts += [
                _text(_NAMES - 10, middle + 4.5, TITLES[name], "name", anchor="end"),
                _bar(kind, y, end),
                f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>',
                _text(max(end, high) + 8, middle + 4.5, _time(spread.median), "value"),
            ]
        top += _HEAD + len(found) * _STEP + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {max(top, 1)}"'
        f' width="{_WIDTH}" role="img" aria-label="CPU of a request, by contender">\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


class _Scale:
    """From microseconds to a place between the names and the values, by orders of magnitude."""

    def __init__(self, low: float, high: float) -> None:
        self._from = log10(max(low, 0.1)) - 0.3
        self._width = (_WIDTH - _NAMES - _VALUES) / max(log10(max(high, 0.1)) - self._from, 0.1)

    def x(self, us: float) -> float:
        return _NAMES + max(log10(max(us, 0.1)) - self._from, 0) * self._width


def _time(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def _bar(kind: str, y: float, end: float) -> str:
    width = end - _NAMES
    return f'<rect class="{kind}" x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="3"/>'


def _text(x: float, y: float, content: str, kind: str, *, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )
