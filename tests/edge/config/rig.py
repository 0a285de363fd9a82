"""Candidates made of text, and places marked in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import dedent
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.load import Loaded, SecretFile, SecretUnreadable, SourceFile, Sources, load
from iop_edge.config.problems import ConfigInvalid, Problem

KEY = b"a fingerprint key for tests only"
TOKEN = "iop_node_00000000_" + "t" * 32

MARK = "«"
"""Stands in a text right before the place where a problem is expected."""

BLANKS = {
    "$TOKEN": '{sha256: "' + "ab" * 32 + '"}',
    "$TOKEN2": '{sha256: "' + "cd" * 32 + '"}',
    "$ADAPTER": '{key: a1, type: openai_compat, base_url: "http://127.0.0.1:8000"}',
    "$OLLAMA": '{key: o1, type: ollama, base_url: "http://127.0.0.1:11434"}',
    "$CLAUDE": '{key: c1, type: anthropic, base_url: "http://127.0.0.1:9000"}',
    "$P1": "id: p1, type: openai_compat, category: api, models: [m], capacity: 1",
    "$P2": "id: p2, type: openai_compat, category: api, models: [m], capacity: 1",
    "$HASH": '"' + "0123456789abcdef" * 4 + '"',
}
"""What stands in tests for parts that a test is not about."""


def filled(text: str) -> str:
    """The text dedented, with blanks filled in: longer names first, for `$TOKEN2`."""
    text = dedent(text).lstrip("\n")
    for name in sorted(BLANKS, key=len, reverse=True):
        text = text.replace(name, BLANKS[name])
    return text


NODE = """
nodes:
  - id: n1
    token: $TOKEN
    adapters: [$ADAPTER, $OLLAMA, $CLAUDE]
    providers:
"""
"""A node with one adapter of each type; providers follow in lines that begin with six spaces."""


class Bad(NamedTuple):
    """One thing that is refused."""

    rule: str
    says: str
    """`code path` of each problem, in the order of the marks."""
    text: str


def cases(rows: Sequence[Bad]) -> list[ParameterSet]:
    """The rows as parameters, each marked with its rule."""
    return [
        pytest.param(row, marks=pytest.mark.req(row.rule), id=row.says.partition("\n")[0])
        for row in rows
    ]


def assert_told(row: Bad) -> None:
    """Exactly the row's problems, so that no rule drags a second complaint along."""
    text, places = marked(row.text)
    said = [tuple(line.split(" ", 1)) for line in row.says.split("\n")]
    expected = sorted(
        (*place, code, path) for place, (code, path) in zip(places, said, strict=True)
    )
    found = [one for one in problems(text) if one.severity == "error"]
    assert sorted((one.line, one.column, one.code, one.path) for one in found) == expected
    assert all(one.message and one.file == "edge.yaml" for one in found)


def marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without its marks, and line and column of each mark."""
    text = filled(text)
    places = []
    for number, line in enumerate(text.split("\n"), 1):
        column = line.find(MARK)
        while column >= 0:
            places.append((number, column + 1))
            line = line[:column] + line[column + 1 :]
            column = line.find(MARK)
    return text.replace(MARK, ""), places


def sources(
    *texts: str | bytes,
    environment: Mapping[str, str] | None = None,
    secret_files: Mapping[str, SecretFile] | None = None,
) -> Sources:
    """A candidate of these files, named `edge.yaml`, `edge2.yaml`, …"""
    held = dict(secret_files or {})

    def read_secret(path: str) -> SecretFile:
        if path not in held:
            raise SecretUnreadable("does not exist")
        return held[path]

    return Sources(
        files=tuple(
            SourceFile(
                f"edge{number or ''}.yaml",
                text if isinstance(text, bytes) else filled(text).encode("utf-8"),
            )
            for number, text in zip((0, *range(2, len(texts) + 1)), texts, strict=True)
        ),
        environment=dict(environment or {}),
        read_secret=read_secret,
        fingerprint_key=KEY,
    )


def loaded(*texts: str | bytes, **given: Mapping[str, str]) -> Loaded:
    return load(sources(*texts, **given))


def effective(*texts: str | bytes, **given: Mapping[str, str]) -> EffectiveConfig:
    return loaded(*texts, **given).config


def problems(*texts: str | bytes, **given: Mapping[str, str]) -> tuple[Problem, ...]:
    """What is wrong with a candidate; nothing where it is valid."""
    try:
        loaded(*texts, **given)
    except ConfigInvalid as invalid:
        return invalid.problems
    return ()


def errors(*texts: str | bytes, **given: Mapping[str, str]) -> tuple[Problem, ...]:
    """What keeps a candidate from running."""
    return tuple(one for one in problems(*texts, **given) if one.severity == "error")


def codes(*texts: str | bytes, **given: Mapping[str, str]) -> list[str]:
    return [problem.code for problem in problems(*texts, **given)]
