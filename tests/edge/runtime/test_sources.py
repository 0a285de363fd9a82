"""The one place that reads files and environment for the loader."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from iop_edge.app import Edge
from iop_edge.config.load import SecretFile, SecretUnreadable, load
from iop_edge.config.problems import ConfigInvalid
from iop_edge.runtime.reloader import RefreshRequest
from iop_edge.runtime.sources import SourceMissing, read_secret, read_sources


@pytest.mark.req("REF-10")
def test_a_candidate_is_what_the_files_held_when_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_bytes(b"edge: {id: first}")
    candidate = read_sources([path], fingerprint_key=b"k")
    path.write_bytes(b"edge: {id: second}")
    assert load(candidate).config.edge.id == "first"
    assert candidate.files[0].name == str(path)


@pytest.mark.req("REF-10")
def test_a_swapped_directory_link_is_followed_anew(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "edge.yaml").write_text(f"edge: {{id: {name}}}")
    link = tmp_path / "now"
    link.symlink_to("one")
    path = link / "edge.yaml"
    assert load(read_sources([path], fingerprint_key=b"k")).config.edge.id == "one"
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert load(read_sources([path], fingerprint_key=b"k")).config.edge.id == "two"


@pytest.mark.req("CFG-2")
def test_the_environment_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "edge.yaml").write_text("edge:\n  id: ${IOP_TEST_ID}\n")
    monkeypatch.setenv("IOP_TEST_ID", "from-there")
    assert load(read_sources([path], fingerprint_key=b"k")).config.edge.id == "from-there"


@pytest.mark.req("REF-5")
@pytest.mark.parametrize(("name", "reason"), [("none", "does not exist"), (".", "is a directory")])
def test_a_file_that_cannot_be_read_is_an_invalid_candidate(
    tmp_path: Path, name: str, reason: str
) -> None:
    path = tmp_path / name
    with pytest.raises(SourceMissing) as raised:
        read_sources([path], fingerprint_key=b"k")
    assert isinstance(raised.value, ConfigInvalid)
    [problem] = raised.value.problems
    assert (problem.code, problem.file) == ("file_unreadable", str(path))
    assert problem.message.endswith(reason)


@pytest.mark.req("REF-5", "REF-10")
def test_a_pipe_is_waited_for_only_where_it_may_be(tmp_path: Path) -> None:
    pipe = tmp_path / "edge.yaml"
    os.mkfifo(pipe)
    with pytest.raises(SourceMissing, match="no regular file"):
        read_sources([pipe], fingerprint_key=b"k", takes_pipes=False)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"edge: { id: piped }\n",))
    writer.start()
    assert load(read_sources([pipe], fingerprint_key=b"k")).config.edge.id == "piped"
    writer.join()


@pytest.mark.req("REF-5")
async def test_an_edge_whose_file_became_a_pipe_refuses_it_and_refreshes_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text("{}\n")
    edge = Edge(load(read_sources([path], fingerprint_key=b"k")), [path], b"k")
    path.unlink()
    os.mkfifo(path)
    refused = await edge.reloader.refresh(RefreshRequest(mode="apply"))
    assert [error.code for error in refused.errors] == ["file_unreadable"]
    path.unlink()
    path.write_text("long_context_threshold_tokens: 5\n")
    applied = await edge.reloader.refresh(RefreshRequest(mode="apply"))
    assert (applied.status, applied.generation.after) == ("applied", 2)


def test_a_name_that_is_no_text_can_still_be_printed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.yaml")
    with pytest.raises(SourceMissing) as raised:
        read_sources([path], fingerprint_key=b"k")
    assert str(raised.value).encode("utf-8")


@pytest.mark.req("CFG-2")
def test_a_secret_file_comes_with_its_mode(tmp_path: Path) -> None:
    (path := tmp_path / "secret").write_bytes(b"value\n")
    path.chmod(0o640)
    assert read_secret(str(path)) == SecretFile(b"value\n", 0o640)


@pytest.mark.req("CFG-2")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "does not exist"),
        (".", "is a directory"),
        ("pipe", "is no regular file"),
        ("\0", "cannot be read"),
    ],
)
def test_a_secret_that_cannot_be_read_says_why(tmp_path: Path, name: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SecretUnreadable) as raised:
        read_secret(str(tmp_path / name))
    assert raised.value.reason == reason
