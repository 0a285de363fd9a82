"""What the containers are made of and configured with, as far as no engine is needed to see it."""

from __future__ import annotations

import hashlib
import os
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from demo.processes import ROOT
from iop_edge.config.load import load
from iop_edge.runtime.sources import read_sources

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
EDGE_CONFIG = ROOT / "deploy" / "compose" / "edge" / "edge.yaml"
NODES = ("node-a", "node-b")


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script of the first start, over folders of the test's own."""
    spec = spec_from_file_location("tokens", ROOT / "deploy" / "compose" / "tokens.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    for holder in ("edge", "caller", *NODES):
        (tmp_path / holder).mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(os, "fchown", lambda descriptor, uid, gid: None)
    return module


def token(folder: Path, holder: str) -> str:
    return (folder / holder / "token").read_text()


@pytest.mark.req("OPS-2", "CFG-1")
def test_the_edges_config_with_the_digests_laid_over_it_is_valid(
    tokens: ModuleType, tmp_path: Path
) -> None:
    tokens.main(["make", *NODES])
    files = [EDGE_CONFIG, tmp_path / "edge" / "tokens.yaml"]
    loaded = load(read_sources(files, fingerprint_key=b"k"))
    assert {warning.code for warning in loaded.warnings} == {"plaintext_off_loopback"}
    for node in NODES:
        digest = hashlib.sha256(token(tmp_path, node).encode()).digest()
        assert loaded.vault.node_token_sha256(node) == digest
    [principal] = loaded.config.openai.principal_tokens
    digest = hashlib.sha256(token(tmp_path, "caller").encode()).hexdigest()
    assert principal.token_hash_sha256 == digest


@pytest.mark.req("OPS-2", "OPS-3")
@pytest.mark.parametrize("endpoint", [None, "", "http://collector:4318"])
def test_traces_are_sent_where_the_environment_names_a_collector(
    tokens: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str | None
) -> None:
    for service in ("edge", *NODES):
        assert COMPOSE["services"][service]["environment"]["IOP_OTLP_ENDPOINT"] is None
    monkeypatch.delenv("IOP_OTLP_ENDPOINT", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("IOP_OTLP_ENDPOINT", endpoint)
    tokens.main(["make", *NODES])
    files = [EDGE_CONFIG, tmp_path / "edge" / "tokens.yaml"]
    loaded = load(read_sources(files, fingerprint_key=b"k"))
    assert loaded.config.telemetry.otlp_endpoint == (endpoint or None)


@pytest.mark.req("OPS-2", "SEC-1")
def test_tokens_are_made_once_and_stand_only_with_their_holder(
    tokens: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.main(["make", *NODES])
    made = {holder: token(tmp_path, holder) for holder in ("caller", *NODES)}
    tokens.main(["make", *NODES])
    assert {holder: token(tmp_path, holder) for holder in made} == made
    assert len(set(made.values())) == 3
    printed = capsys.readouterr().out
    for holder, value in made.items():
        assert value not in printed
        holding = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.parent.name for path in holding if value in path.read_text()] == [holder]
        assert (tmp_path / holder / "token").stat().st_mode & 0o777 == 0o440
    tokens.main(["caller"])
    assert capsys.readouterr().out.strip() == made["caller"]


@pytest.mark.req("OPS-2", "SEC-1")
@pytest.mark.parametrize("left", ["", "\n", "\0" * 84, "iop_caller_0"], ids=repr)
def test_what_an_older_start_left_is_no_token_unless_it_is_whole(
    tokens: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    tokens.main(["make", *NODES])
    whole = token(tmp_path, "node-b")
    for holder in ("caller", "node-a"):
        (tmp_path / holder / "token").unlink()
        (tmp_path / holder / "token").write_text(left)
    tokens.main(["make", *NODES])
    capsys.readouterr()
    assert len({token(tmp_path, holder) for holder in ("caller", *NODES)} - {left}) == 3
    assert token(tmp_path, "node-b") == whole
    laid_over = (tmp_path / "edge" / "tokens.yaml").read_text()
    assert hashlib.sha256(left.encode()).hexdigest() not in laid_over
    assert hashlib.sha256(token(tmp_path, "caller").encode()).hexdigest() in laid_over


@pytest.mark.req("OPS-2")
def test_whoever_asks_for_a_token_before_the_first_start_is_told_so(tokens: ModuleType) -> None:
    with pytest.raises(SystemExit, match="docker compose up"):
        tokens.main(["caller"])


@pytest.mark.req("OPS-2")
def test_every_service_is_hardened_and_limited() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        if name != "tokens":
            assert service["user"] == "65532:65532", name
            assert "cap_add" not in service, name


@pytest.mark.req("OPS-2")
def test_every_image_that_is_named_is_built_here() -> None:
    services = COMPOSE["services"].values()
    built = {one["image"]: one["build"]["target"] for one in services if "build" in one}
    stages = re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert {one["image"] for one in services} == set(built)
    assert set(built.values()) == {"edge", "node", "model"} <= set(stages)


@pytest.mark.req("OPS-2")
def test_the_build_sees_only_what_the_images_are_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    needed = {source.split("/")[0] for sources in copied for source in sources.split()}
    assert "*" in ignored
    assert needed == let_in


@pytest.mark.req("OPS-2", "SEC-1")
@pytest.mark.parametrize("image", ["edge", "node", "model"])
def test_the_builders_own_settings_reach_no_stage_that_an_image_is_made_of(image: str) -> None:
    stages = {
        name: (base, body)
        for base, name, body in re.findall(
            r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
        )
    }
    seen = []
    while image in stages:
        image, body = stages[image]
        seen.append(body)
    assert image == "${BASE}"
    assert "ARG" in stages["build"][1]
    assert [line for body in seen for line in body.splitlines() if line.startswith("ARG")] == []
