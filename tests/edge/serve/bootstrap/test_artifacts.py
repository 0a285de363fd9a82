from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from iop_edge.serve.bootstrap.artifacts import MAX_MANIFEST_BYTES, ArtifactFolder, NoArtifacts

from .conftest import CONTENT, NAMED, UNNAMED, manifest


@pytest.mark.req("NODE-2")
def test_what_the_manifest_names_can_be_opened(folder: Path) -> None:
    file, size = ArtifactFolder(folder).open(NAMED)
    with file:
        assert (file.read(), size) == (CONTENT, len(CONTENT))


@pytest.mark.req("NODE-2")
def test_the_digest_is_that_of_the_manifest_as_it_lies_there(folder: Path) -> None:
    read, digest = ArtifactFolder(folder).manifest()
    assert digest == sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert [artifact.file for artifact in read.files] == [NAMED]


@pytest.mark.req("NODE-2", "SEC-1")
@pytest.mark.parametrize(
    "name",
    [
        UNNAMED,
        "manifest.json",
        "../secret",
        "..",
        ".",
        "",
        "sub/" + NAMED,
        f"./{NAMED}",
        "/etc/passwd",
        NAMED + "\0",
        NAMED + "\n",
        NAMED.upper(),
    ],
)
def test_nothing_else_can_be(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder / "sub").mkdir()
    (folder / "sub" / NAMED).write_text("secret")
    with pytest.raises(NoArtifacts):
        ArtifactFolder(folder).open(name)


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/file", "..", "link\0"])
def test_a_manifest_that_names_a_path_opens_nothing_outside(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    files = [manifest()["files"][0] | {"file": name}]
    (folder / "manifest.json").write_text(json.dumps(manifest(files=files)))
    with pytest.raises(NoArtifacts, match="no name of a file"):
        ArtifactFolder(folder).open(name)


def _link(place: Path) -> None:
    (place.parent.parent / "secret").write_text("secret")
    place.symlink_to("../secret")


def _link_within(place: Path) -> None:
    place.symlink_to(UNNAMED)


def _folder(place: Path) -> None:
    place.mkdir()


def _pipe(place: Path) -> None:
    os.mkfifo(place)


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("make", [_link, _link_within, _folder, _pipe])
def test_what_is_no_regular_file_of_the_folder_is_refused(
    folder: Path, make: Callable[[Path], None]
) -> None:
    (folder / NAMED).unlink()
    make(folder / NAMED)
    with pytest.raises(NoArtifacts):
        ArtifactFolder(folder).open(NAMED)


@pytest.mark.req("NODE-2")
def test_a_folder_that_is_not_there_is_named_with_what_fills_it(tmp_path: Path) -> None:
    with pytest.raises(NoArtifacts, match=r"absent.*make artifacts.*bootstrap\.artifact_dir"):
        ArtifactFolder(tmp_path / "absent").manifest()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"iop": 1}'])
def test_a_manifest_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(NoArtifacts, match="is no manifest"):
        ArtifactFolder(folder).manifest()


def test_a_manifest_over_the_bound_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(NoArtifacts, match=str(MAX_MANIFEST_BYTES)):
        ArtifactFolder(folder).manifest_bytes()
