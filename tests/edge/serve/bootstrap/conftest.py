"""An artifact folder with two small files in it, and a manifest that names one of them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

NAMED = "tiny-1.0-py3-none-any.whl"
UNNAMED = "other-1.0-py3-none-any.whl"
CONTENT = b"wheel" * 100_000


def manifest(**changes: Any) -> dict[str, Any]:
    artifact = {
        "file": NAMED,
        "sha256": sha256(CONTENT).hexdigest(),
        "size": len(CONTENT),
        "name": "tiny",
        "version": "1.0",
        "python": "any",
        "platform": "any",
    }
    target = {"python": "3.11", "platform": "x86_64"}
    return {"iop": "0.1.0", "glibc": "2.17", "targets": [target], "files": [artifact], **changes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "artifacts"
    path.mkdir()
    (path / NAMED).write_bytes(CONTENT)
    (path / UNNAMED).write_bytes(b"not for anyone")
    (path / "manifest.json").write_text(json.dumps(manifest()))
    return path
