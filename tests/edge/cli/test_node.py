from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iop_edge.cli.main import main

TOKEN = "iop_node_0123abcd_" + "s" * 40
MANIFEST = {"iop": "0.1.0", "glibc": "2.17", "targets": [], "files": []}

Join = Callable[..., Result]


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Join:
    """Runs `node join` on a config with one node for each form of a token."""
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "manifest.json").write_text(json.dumps(MANIFEST))
    secret = tmp_path / "secret"
    secret.write_text(TOKEN + "-in-a-file\n")
    secret.chmod(0o600)
    monkeypatch.setenv("JOIN_TOKEN", TOKEN)
    config = tmp_path / "edge.yaml"
    config.write_text(
        f"""
edge: {{ advertise: "edge.example:50051" }}
bootstrap: {{ advertise: "edge.example:18080", artifact_dir: "{artifacts}" }}
nodes:
  - {{ id: by-env, token: {{ env: JOIN_TOKEN }} }}
  - {{ id: by-file, token: {{ file: "{secret}" }} }}
  - {{ id: by-hash, token: {{ sha256: "{sha256(b"x").hexdigest()}" }} }}
"""
    )

    def run(*arguments: str, file: Path = config) -> Result:
        return CliRunner().invoke(main, ["node", "join", *arguments, "--config", str(file)])

    return run


@pytest.mark.req("NODE-2")
def test_the_line_stands_alone_on_standard_output(join: Join) -> None:
    ran = join("by-env")
    assert ran.exit_code == 0
    assert ran.stdout.count("\n") == 1
    assert shlex.split(ran.stdout)[0] == "python3"
    assert "note: the session is plaintext" in ran.stderr


@pytest.mark.req("NODE-2")
def test_json_has_the_same_line_with_what_it_dials(join: Join) -> None:
    document = json.loads(join("by-env", "--json").stdout)
    assert document["line"] == join("by-env").stdout.rstrip("\n")
    assert (document["edge"], document["bootstrap"]) == (
        "edge.example:50051",
        "http://edge.example:18080/",
    )
    assert document["node_id"] == "by-env"


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("node_id", ["by-env", "by-file"])
def test_no_token_is_in_the_line(join: Join, node_id: str) -> None:
    assert TOKEN not in join(node_id).output


@pytest.mark.req("NODE-2")
def test_a_token_known_by_its_hash_alone_has_a_placeholder(join: Join) -> None:
    words = shlex.split(join("by-hash").stdout)
    assert words[:2] == ["IOP_NODE_TOKEN=<token of by-hash>", "python3"]


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize("node_id", ["by-env", "by-hash"])
def test_a_token_file_of_the_joining_machine_is_named_in_the_line(join: Join, node_id: str) -> None:
    words = shlex.split(join(node_id, "--token-file", "/run/secrets/my token").stdout)
    assert words[-2:] == ["--token-file", "/run/secrets/my token"]
    assert words[0] == "python3"


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize(
    ("node_id", "token"), [("by-env", TOKEN), ("by-file", TOKEN + "-in-a-file")]
)
def test_the_token_is_in_the_line_where_that_is_asked_for_in_so_many_words(
    join: Join, node_id: str, token: str
) -> None:
    words = shlex.split(join(node_id, "--with-token").stdout)
    assert words[:2] == [f"IOP_NODE_TOKEN={token}", "python3"]
    assert token not in words[1:], "an argument would be shown to every user of the machine"


def test_a_token_that_is_not_at_hand_is_told_by_its_variable(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOIN_TOKEN")
    assert join("by-env").exit_code == 0
    ran = join("by-env", "--with-token")
    assert ran.exit_code == 1
    assert "JOIN_TOKEN" in ran.stderr


def test_an_unknown_node_is_a_usage_error_with_the_nearest_one(join: Join) -> None:
    ran = join("by-enf")
    assert ran.exit_code == 2
    assert "did you mean by-env?" in ran.stderr


def test_a_config_that_is_not_there_is_exit_2_and_an_invalid_one_exit_1(
    join: Join, tmp_path: Path
) -> None:
    assert join("by-env", file=tmp_path / "absent.yaml").exit_code == 2
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("nodes: 3\n")
    ran = join("by-env", file=wrong)
    assert (ran.exit_code, ran.stdout) == (1, "")


@pytest.mark.req("NODE-2")
def test_an_edge_without_artifacts_has_no_line_and_says_why(join: Join, tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "manifest.json").unlink()
    ran = join("by-env")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "manifest.json" in ran.stderr
