from __future__ import annotations

import json
import re
from hashlib import sha256

import pytest
from click.testing import CliRunner

from iop_edge.cli.token import token


@pytest.mark.parametrize("kind", ["node", "caller"])
@pytest.mark.req("CFG-17")
def test_a_new_token_names_its_kind_and_comes_with_its_digest(kind: str) -> None:
    ran = CliRunner().invoke(token, ["new", "--kind", kind, "--json"])
    assert ran.exit_code == 0
    made = json.loads(ran.stdout)
    assert re.fullmatch(rf"iop_{kind}_[0-9a-f]{{8}}_[0-9a-f]{{64}}", made["token"])
    assert made["sha256"] == sha256(made["token"].encode()).hexdigest()
    assert made["kind"] == kind


@pytest.mark.req("CFG-17")
def test_for_people_token_and_digest_stand_on_a_line_each() -> None:
    ran = CliRunner().invoke(token, ["new"])
    lines = dict(line.split() for line in ran.stdout.splitlines())
    assert lines["sha256"] == sha256(lines["token"].encode()).hexdigest()
    assert lines["token"].startswith("iop_node_")
    assert lines["token"] not in ran.stderr


def test_two_tokens_differ() -> None:
    made = {CliRunner().invoke(token, ["new", "--json"]).stdout for _ in range(2)}
    assert len(made) == 2


def test_a_kind_that_is_none_is_a_usage_error() -> None:
    assert CliRunner().invoke(token, ["new", "--kind", "robot"]).exit_code == 2
