"""The README as its reader types it: `Run it` and `Change it`, line by line, in a fresh folder.

What is changed in the lines are addresses alone: the test's ports, and the small upstream in the
place of the reader's own model servers. `make setup` is what made the environment it runs in.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_harness import running_site

from demo.processes import BIN, ROOT, plain_environment
from demo.site import Site

pytestmark = pytest.mark.e2e

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOKEN = "f" * 64


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def lines_of(title: str) -> list[str]:
    """What the shell blocks of a section say, a command each."""
    blocks = re.findall(r"```sh\n(.*?)```", section(title), re.DOTALL)
    return [line for line in "".join(blocks).replace("\\\n", " ").splitlines() if line]


def arguments(line: str) -> list[str]:
    """Of a line that starts a process: its words without variables and remark."""
    words = line.split("#")[0].split()
    return [word for word in words if "=" not in word]


@pytest.fixture
def site(tmp_path: Path, small_upstream_url: str) -> Iterator[Site]:
    """A folder with the README's file in it, and `.venv` as `make setup` leaves it."""
    with running_site(tmp_path) as site:
        [block] = re.findall(r"```yaml\n(.*?)```", section("Run it"), re.DOTALL)
        text = re.sub(r"http://127\.0\.0\.1:(8000|11434)", small_upstream_url, block)
        config = yaml.safe_load(text)
        sections = site.listeners()
        # The lines of the block itself stay as they are, remarks and order included.
        text = text.replace("openai: { enabled: true, provider_id: home }\n", "")
        config["openai"] |= {"listen": sections["openai"]["listen"]}
        added = {**sections, "openai": config["openai"]}
        site.config.write_text(yaml.safe_dump(added, sort_keys=False) + text)
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / "bin").symlink_to(BIN)
        yield site


def typed(site: Site, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=site.group.folder,
        env=plain_environment() | {"IOP_NODE_TOKEN": TOKEN, **environment},
    )


@pytest.mark.req("OPS-1", "REF-1", "NODE-1", "OAI-1")
def test_what_the_readme_says_to_type_does_what_it_says(site: Site) -> None:
    setup, token, check, serve, node, ask = lines_of("Run it")
    assert (setup, token.split("=")[0]) == ("make setup", "export IOP_NODE_TOKEN")
    checked = typed(site, check)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    folder = site.group.folder
    variables = {"IOP_NODE_TOKEN": TOKEN, "IOP_EDGE_CONFIG": str(site.config)}
    program, *rest = arguments(serve)
    site.edge = site.group.start("edge", [folder / program, *rest], variables)
    program, *rest = arguments(node)
    assert "IOP_EDGE=127.0.0.1:50051" in node
    told = {"IOP_NODE_TOKEN": TOKEN, "IOP_EDGE": f"127.0.0.1:{site.ports.grpc}"}
    site.nodes["desk"] = site.group.start("node", [folder / program, *rest], told)
    site.wait_connected("desk")

    assert "http://127.0.0.1:8080/" in ask
    answered = typed(site, ask.replace(":8080/", f":{site.ports.openai}/"))
    answer = json.loads(answered.stdout)
    assert answer["model"] == "smart"
    assert answer["choices"][0]["message"]["content"]

    edit, dry_run, refresh, status = lines_of("Change it")
    editor = r"sed -i s/capacity:.8$/capacity:\x2012/"
    assert typed(site, edit, EDITOR=editor).returncode == 0
    shown = typed(site, dry_run)
    assert (shown.returncode, "capacity" in shown.stdout) == (3, True), shown.stdout + shown.stderr
    assert site.provider_status("desk-vllm")["capacity"] == 8
    assert typed(site, refresh).returncode == 0
    assert site.provider_status("desk-vllm")["capacity"] == 12
    told_status = typed(site, status.replace("--watch", ""))
    assert told_status.returncode == 0
    assert "slots=0/12" in told_status.stdout
