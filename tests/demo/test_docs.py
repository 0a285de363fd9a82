"""The documents name files, and those exist."""

from __future__ import annotations

import re

import pytest
import yaml

from demo.processes import ROOT
from iop_edge.config.document import Document
from iop_edge.config.resolving.listeners import NOT_BUILT

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/failure.md")
_TOPS = ("edge", "node", "shared", "tests", "configs")
_ROOTS = ("", "edge/iop_edge/", "node/iop_node/", "shared/", "edge/iop_edge/config/", "docs/")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_and_link_of_a_document_leads_somewhere(name: str) -> None:
    document = ROOT / name
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    paths = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|proto|yaml|md))`", text)
    lost = [link for link in links if not (document.parent / link).exists()]
    lost += [path for path in paths if not _exists(path)]
    assert not lost


@pytest.mark.req("CFG-1")
def test_the_example_shows_every_section_that_is_built() -> None:
    example = yaml.safe_load((ROOT / "configs" / "edge.yaml").read_text(encoding="utf-8"))
    assert set(Document.__struct_fields__) - set(NOT_BUILT) - set(example) == set()


def _exists(path: str) -> bool:
    # A bare file name stands beside a room that the text has just named.
    if "/" not in path:
        return any(any(ROOT.glob(f"{top}/**/{path}")) for top in _TOPS)
    return any((ROOT / root / path).exists() for root in _ROOTS)
