"""Loader, defaults, validation, examples and docs never disagree (CFG-1)."""

from __future__ import annotations

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from iop_edge.config.load import SourceFile, Sources, load
from iop_edge.runtime.sources import read_secret

ROOT = Path(__file__).resolve().parents[3]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^( *)```yaml *\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Every YAML block of the docs; one of another program is fenced as ```yaml with its name."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", found[2])
        for path in DOCS
        for number, found in enumerate(_BLOCK.finditer(path.read_text(encoding="utf-8")), 1)
    ]


def proved(name: str, content: bytes) -> object:
    candidate = Sources(
        files=(SourceFile(name, content),),
        environment={},
        read_secret=read_secret,
        fingerprint_key=b"k",
    )
    return load(candidate, skip_secrets=True)


@pytest.mark.req("CFG-1")
@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda one: one.name
)
def test_every_example_is_valid(path: Path) -> None:
    assert proved(path.name, path.read_bytes())


@pytest.mark.req("CFG-1")
def test_every_yaml_block_of_the_docs_is_valid() -> None:
    for name, text in blocks():
        assert proved(name, text.encode())


@pytest.mark.req("CFG-24")
def test_the_example_names_a_schema_that_is_there() -> None:
    first = (ROOT / "configs" / "edge.yaml").read_text(encoding="utf-8").splitlines()[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((ROOT / "configs" / named).read_text(encoding="utf-8"))["properties"]


@pytest.mark.req("CFG-1", "CFG-24", "REF-6")
def test_what_is_printed_from_the_structs_is_current() -> None:
    spec = spec_from_file_location("docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    docs = module_from_spec(spec)
    spec.loader.exec_module(docs)
    for path, text in docs.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} (run `make docs`)"
