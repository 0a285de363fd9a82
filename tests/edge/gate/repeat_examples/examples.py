"""The labelled texts by which the detector of repetition is tuned and judged.

Innocent texts repeat what such texts do repeat, and are written out or, where they are data, made
by a rule. Loops are an opening and a unit that comes again and again, exactly or changed the way
models change it. Half of all, by the hash of its name, was never looked at while tuning.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Example(NamedTuple):
    """A text; where it is a loop, where the first occurrence of its unit ends."""

    kind: str
    name: str
    text: str
    first_ends: int | None = None

    @property
    def is_loop(self) -> bool:
        return self.first_ends is not None

    @property
    def is_held_out(self) -> bool:
        return blake2b(f"{self.kind}: {self.name}".encode()).digest()[0] % 2 == 1


def _sections(file: str) -> Iterator[tuple[str, str]]:
    for section in (FOLDER / file).read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, body = section.partition("\n")
        yield title, body


# Innocent texts.


def written() -> Iterator[Example]:
    for file in ("innocent_prose.txt", "innocent_forms.txt", "innocent_more.txt"):
        for title, body in _sections(file):
            kind, _, name = title.partition(": ")
            yield Example(kind, name, body)


def made() -> Iterator[Example]:
    """Data that nobody writes by hand."""
    dice = random.Random(20)
    tables = "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 13) for b in range(1, 11))
    yield Example("table", "multiplication", tables)
    square = "\n".join(" ".join(f"{a * b:3}" for b in range(1, 13)) for a in range(1, 13))
    yield Example("table", "multiplication square", square)
    zeros = "\n".join(" ".join("0" for _ in range(30)) for _ in range(30))
    yield Example("table", "a square of zeros", f"Here is the grid:\n\n{zeros}\n")
    dump = bytes(300) + bytes(dice.randrange(256) for _ in range(300)) + b"\xff" * 300
    rows = (
        f"{at:08x}  {dump[at : at + 16].hex(' ')}  |{'.' * len(dump[at : at + 16])}|"
        for at in range(0, len(dump), 16)
    )
    yield Example("data", "hex dump", "\n".join(rows))
    icon = bytes(500) + dice.randbytes(900) + bytes(400)
    yield Example("data", "base64", "The icon: data:image/png;base64," + b64encode(icon).decode())
    genes = "".join(dice.choice("ACGT") for _ in range(1500))
    blocks = "\n".join(genes[at : at + 60] for at in range(0, len(genes), 60))
    yield Example("dna", "random", blocks)
    small = genes.lower()
    lines = (
        f"{at + 1:>9} " + " ".join(small[at + ten : at + ten + 10] for ten in range(0, 60, 10))
        for at in range(0, 1500, 60)
    )
    yield Example("dna", "in blocks of ten", "\n".join(lines))
    lights = ("red", "amber", "green")
    rows = (
        f"INSERT INTO lights (id, place, state) VALUES ({n}, 'at {n}', '{dice.choice(lights)}');"
        for n in range(60)
    )
    yield Example("sql", "a bulk of inserts", "\n".join(rows))
    rows = (f"    [{n}, {dice.random():.4f}, {dice.random():.4f}]," for n in range(80))
    yield Example("json", "points", "points = [\n" + "\n".join(rows) + "\n]\n")
    rows = (f"2023-05-06 07:{n // 60:02}:{n % 60:02} INFO heartbeat ok" for n in range(120))
    yield Example("log", "heartbeats", "\n".join(rows))
    rows = (f"Epoch {n}/40 - loss: {2 / n:.4f} - accuracy: {1 - 0.9 / n:.4f}" for n in range(1, 41))
    yield Example("log", "training", "\n".join(rows))
    rows = (f"Processing frame {n} of 90 ... done" for n in range(1, 91))
    yield Example("log", "frames", "\n".join(rows))
    rows = (f"| {n} | item {n} | {dice.randrange(100)} | yes |" for n in range(60))
    yield Example(
        "table", "rows of items", "| # | name | count | ok |\n|---|---|---|---|\n" + "\n".join(rows)
    )
    bottles = (
        f"{n} green flasks upon the wall, {n} green flasks. If one of them should chance to fall, "
        f"there would be {n - 1} green flasks upon the wall.\n"
        for n in range(40, 1, -1)
    )
    yield Example("bottles", "forty verses", "\n".join(bottles))
    words = ["lamp", "river", "stone", "orchard", "ladder", "window", "harbour", "needle", "saddle"]
    pairs = (f"The {a} is beside the {b}." for a in words for b in words if a != b)
    yield Example("reasoning", "all pairs of words", " ".join(pairs))
    truth = ("true", "false")
    rows = (
        f"If p is {p}, q is {q}, r is {r} and s is {s}, then the formula is {dice.choice(truth)}."
        for p in truth
        for q in truth
        for r in truth
        for s in truth
    )
    yield Example("reasoning", "truth table in words", "\n".join(rows))
    moves = (
        "Move disk {} from peg {} to peg {}.".format(*move) for move in _hanoi(6, "A", "C", "B")
    )
    yield Example("reasoning", "tower of Hanoi", "\n".join(moves))
    yield Example("rules", "long lines", "\n".join("-=~#._*+"[n % 8] * 400 for n in range(8)))
    yield Example(
        "rules", "blank lines and spaces", "a" + "\n" * 300 + " " * 900 + "b\t" + "\t" * 400
    )
    rows = (f"x{n} = {dice.randrange(10)} + x{n - 1};" for n in range(1, 90))
    yield Example("code", "assignments", "\n".join(rows))
    turns = ("R", "U", "R'", "U'", "F'", "L2", "D", "B")
    steps = " ".join(dice.choice(turns) for _ in range(300))
    yield Example("chess", "turns of a cube", steps)
    primes = [n for n in range(2, 1500) if all(n % d for d in range(2, int(n**0.5) + 1))]
    yield Example("list", "primes", ", ".join(map(str, primes)))
    roman = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")
    rows = (f"Chapter {one}\n\nIn which chapter {one} is announced.\n" for one in roman)
    yield Example("list", "chapters", "\n".join(rows))
    laughs = "\n".join(f"<{who}> {'ha' * dice.randrange(4, 40)}" for who in "annbobcydeeeve")
    yield Example("laughter", "a chat", laughs)


def _hanoi(height: int, start: str, goal: str, other: str) -> Iterator[tuple[int, str, str]]:
    if height:
        yield from _hanoi(height - 1, start, other, goal)
        yield height, start, goal
        yield from _hanoi(height - 1, other, goal, start)


def innocent() -> list[Example]:
    return [*written(), *made()]


# Loops. Each change gets the unit and the number of its turn.

_LENGTH = 6000
Change = Callable[[str, int], str]


def _same(unit: str, _turn: int) -> str:
    return unit


def _numbered(unit: str, turn: int) -> str:
    return f"\n{turn + 1}. {unit.strip()}"


def _steps(unit: str, turn: int) -> str:
    return f"\n**Step {turn + 1}:** {unit.strip()}"


def _one_word(unit: str, turn: int) -> str:
    """One word of the unit is another one each time, out of a few."""
    words = unit.split(" ")
    longest = max(range(len(words)), key=lambda at: len(words[at]))
    words[longest] = (words[longest], "indeed", "perhaps", "again")[turn * 7 % 4]
    return " ".join(words)


def _opened_differently(unit: str, turn: int) -> str:
    return (" So", " Then", " But", " And", " Well")[turn * 3 % 5] + unit


def _spaced(unit: str, turn: int) -> str:
    return unit + ("", " ", "\n", "\n\n", "  ")[turn * 3 % 5]


def _growing(unit: str, turn: int) -> str:
    return unit.rstrip() + "." * (turn % 7) + unit[len(unit.rstrip()) :]


def _capitals(unit: str, turn: int) -> str:
    return unit.upper() if turn % 2 else unit


def _once_in_a_while(unit: str, turn: int) -> str:
    """A new word, as rarely as in a model that tries to get away."""
    return unit + (f" Hmm{chr(97 + turn % 26)}." if turn % 5 == 4 else "")


SENTENCES: dict[str, Change] = {
    "numbered": _numbered,
    "steps": _steps,
    "one word": _one_word,
    "opened differently": _opened_differently,
    "spaced": _spaced,
    "growing": _growing,
    "capitals": _capitals,
    "once in a while": _once_in_a_while,
}


def loops() -> list[Example]:
    found = []
    for place, (title, body) in enumerate(_sections("loop_seeds.txt")):
        opening, _, unit = body.partition("\n~~~")
        unit = unit[:-1] if not unit.endswith("\n\n") else unit
        found.append(_loop("same", title, opening, unit, _same))
        if len(unit) >= 20:
            names = list(SENTENCES)
            for name in (names[place % len(names)], names[(place + 3) % len(names)]):
                found.append(_loop(name, title, opening, unit, SENTENCES[name]))
    return found


def _loop(change: str, title: str, opening: str, unit: str, write: Change) -> Example:
    text, turn, first_ends = opening, 0, 0
    while len(text) < _LENGTH + 4 * len(unit):
        text += write(unit, turn)
        first_ends = first_ends or len(text)
        turn += 1
    return Example(change, title, text, first_ends)


def examples() -> list[Example]:
    return [*innocent(), *loops()]
