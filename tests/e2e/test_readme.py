"""The README is true: its config starts an edge, and its refusal is what the check says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from e2e_harness import running_site, write

from demo.processes import ROOT, plain_environment
from demo.site import EDGE

pytestmark = pytest.mark.e2e

README = (ROOT / "README.md").read_text()


def _first_config() -> str:
    [block] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    return str(block)


@pytest.mark.req("CFG-1")
def test_the_first_config_of_the_readme_starts_an_edge_that_waits_for_its_node(
    tmp_path: Path,
) -> None:
    with running_site(tmp_path) as site:
        config = yaml.safe_load(_first_config())
        config["nodes"][0]["token"] = {"sha256": site.token_sha256("desk")}
        write(site, {**config, **site.listeners()})
        site.start_edge()
        status = site.status()
    assert [(node["node_id"], node["connected"]) for node in status["nodes"]] == [("desk", False)]
    assert [model["model_id"] for model in status["models"]] == ["smart"]


@pytest.mark.req("CFG-4", "OPS-1")
def test_the_refusal_in_the_readme_is_what_the_check_says(tmp_path: Path) -> None:
    broken = _first_config().replace("capacity: 8", "capcity: 8")
    (tmp_path / "edge.yaml").write_text(broken.replace("adapter: ollama", "adapter: olama"))
    ran = subprocess.run(
        [EDGE, "config", "check"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=plain_environment() | {"IOP_NODE_TOKEN": "x" * 32},
    )
    [shown] = re.findall(r"```\n(edge\.yaml:.*?)```", README, re.DOTALL)
    said = (ran.stdout + ran.stderr).splitlines()
    assert ran.returncode == 1
    assert [line for line in shown.splitlines() if line not in said] == []
