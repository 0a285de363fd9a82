"""The join line in fresh containers that have Python and nothing else, and chats answered there.

The edge is a process of this machine, and the containers share its network: the composed site has
no part in this.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.processes import ROOT, Group, until
from demo.site import Site
from demo.small_upstream import words_for
from tests.e2e.e2e_harness import (
    CALLER_TOKEN,
    canaries,
    chat,
    prompt,
    running_site,
    site_config,
    write,
)

pytestmark = pytest.mark.req("NODE-1", "NODE-2")

NODE = "a"
IMAGE = "python:3.13-slim"
PYTHON = "3.13"
FRESH = "iop-test-fresh"
STRANGER = ("--user", "12345:12345")


@pytest.fixture(autouse=True)
def whole_again() -> None:
    """Stands in for the composed site's own, which is not needed here."""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make artifacts` makes, for the Python of the image on this machine's architecture."""
    folder = tmp_path_factory.mktemp("artifacts")
    machine = _docker("run", "--rm", IMAGE, "uname", "-m").strip()
    target = ("--python", PYTHON, "--platform", machine)
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/artifacts.py", folder, *target],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, artifacts: Path) -> Iterator[Site]:
    """An edge that offers the artifacts, and an upstream for whoever becomes its node."""
    upstreams = Group(tmp_path_factory.mktemp("upstreams"))
    try:
        upstream = upstreams.start_announced("small", "demo.small_upstream")["listening"]
        with running_site(tmp_path_factory.mktemp("joining")) as site:
            config = site_config(site, upstream)
            for node in config["nodes"]:
                # A fresh machine has no key of an upstream.
                node["adapters"][0].pop("headers")
            config["bootstrap"]["artifact_dir"] = str(artifacts)
            write(site, config)
            site.start_edge()
            yield site
    finally:
        upstreams.stop()


@pytest.fixture(scope="module")
def line(site: Site) -> str:
    ran = site.iop_edge("node", "join", NODE, "--config", str(site.config))
    assert ran.exit_status == 0, ran.stderr
    return ran.stdout.strip()


def _docker(*arguments: str, typed: str = "", expected: int = 0) -> str:
    """Run `docker …` with this on its standard input; everything that it printed."""
    ran = subprocess.run(
        ["docker", *arguments],
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == expected, ran.stdout
    return ran.stdout


@contextmanager
def pasted(site: Site, line: str, *options: str) -> Iterator[str]:
    """The line pasted in a fresh container, the token typed, and the edge counting the node as
    connected. Gives what the container has printed until then."""
    command = ["docker", "run", "--interactive", "--name", FRESH, "--network", "host", *options]
    _docker("rm", "--force", FRESH)
    with subprocess.Popen(
        [*command, IMAGE, "sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{site.token(NODE)}\n".encode())
        process.stdin.close()

        def is_connected() -> bool:
            """the node in the container is connected"""
            assert process.poll() is None, _docker("logs", FRESH)
            return bool(site.node_status(NODE)["connected"])

        def is_gone() -> bool:
            """the edge has noticed that the node is gone"""
            return not site.node_status(NODE)["connected"]

        try:
            until(is_connected, timeout_s=60)
            yield _docker("logs", FRESH)
            # Not by `docker stop`, which asks the shell that the line was pasted into.
            started = re.search(r'"pid": (\d+), "event": "node_started"', _docker("logs", FRESH))
            assert started is not None
            _docker("exec", FRESH, "sh", "-c", f"kill -TERM {started[1]}")
            assert process.wait(20) == 0, _docker("logs", FRESH)
        finally:
            _docker("rm", "--force", FRESH)
    until(is_gone, timeout_s=20)


def ask(site: Site, content: str) -> str:
    """A whole answer, through whichever node is there."""
    request = urllib.request.Request(
        f"{site.openai_url}/chat/completions",
        json.dumps(chat("one", content, max_tokens=5)).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {CALLER_TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
        return text


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ((), ""),
        ((*STRANGER, "--read-only", "--tmpfs", "/work:exec,mode=1777"), " --home /work/iop"),
    ],
    ids=["root", "a user without a home, and a root that cannot be written to"],
)
def test_a_fresh_container_becomes_the_node_and_answers(
    site: Site, line: str, options: tuple[str, ...], more: str
) -> None:
    content = prompt("fresh")
    with pasted(site, line + more, *options) as printed:
        assert ask(site, content) == "".join(words_for(content, 5))
        printed += _docker("logs", FRESH)
    assert "Traceback" not in printed
    assert not [secret for secret in canaries(site) if secret in printed]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (STRANGER, "/.local/share/iop/iop-node-a cannot be written to (Permission denied)"),
        (("--read-only",), "iop-node-a cannot be written to (Read-only file system)"),
    ],
    ids=["a user without a home", "a root that cannot be written to"],
)
def test_a_container_where_nothing_can_be_kept_is_told_so_in_one_line(
    line: str, options: tuple[str, ...], said: str
) -> None:
    place = ("run", "--rm", "--network", "host", *options, IMAGE)
    printed = _docker(*place, "sh", "-c", line, expected=1)
    [told] = printed.splitlines()
    assert said in told
    assert "--home FOLDER" in told
