"""The documents name files, and those exist."""

from __future__ import annotations

import re

import pytest

from demo.processes import ROOT

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


def _exists(path: str) -> bool:
    # A bare file name stands beside a room that the text has just named.
    if "/" not in path:
        return any(any(ROOT.glob(f"{top}/**/{path}")) for top in _TOPS)
    return any((ROOT / root / path).exists() for root in _ROOTS)
