"""The join line on a machine that has Python and nothing else, against an edge with TLS.

The machine is a home folder of its own and an empty environment. One installation serves all tests
of this module; each leaves it as it was.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from e2e_harness import running_site, site_config, write

from demo.processes import ROOT, until
from demo.site import Site

pytestmark = pytest.mark.e2e

NODE = "a"
BASE_PYTHON = Path(sys.base_prefix) / "bin"


class Machine:
    """Where lines are pasted: a home and nothing in the environment but it and a PATH."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._logs = 0
        home.mkdir(parents=True)

    def start(
        self, line: str, *, typed: str = "", environment: dict[str, str] | None = None
    ) -> Pasted:
        """Paste a line. `typed` is what stands on standard input afterwards."""
        self._logs += 1
        log = self.home.parent / f"{self.home.name}-{self._logs}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", line],
                env={"HOME": str(self.home), "PATH": f"{BASE_PYTHON}:/usr/bin:/bin"}
                | (environment or {}),
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(f"{typed}\n".encode())
        process.stdin.close()
        return Pasted(process, log)

    def run(self, line: str, **given: object) -> Ended:
        """Paste a line that ends by itself."""
        pasted = self.start(line, **given)  # type: ignore[arg-type]
        try:
            return Ended(pasted.process.wait(60), pasted.output())
        finally:
            pasted.kill()

    @property
    def kept(self) -> Path:
        return self.home / ".local/share/iop" / f"iop-node-{NODE}"


class Ended(NamedTuple):
    exit_status: int
    output: str


class Pasted:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def output(self) -> str:
        return self.log.read_text()

    def node_pid(self) -> int:
        started = re.search(r'"pid": (\d+), "event": "node_started"', self.output())
        assert started is not None, self.output()
        return int(started[1])

    def drain(self) -> int:
        """End the node as a service manager does; its exit status."""
        os.kill(self.node_pid(), signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


def _command_lines() -> Iterator[bytes]:
    """Of every process of this machine, as `ps` shows them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_bytes()
            except OSError:
                continue


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make artifacts` makes, for this Python on this machine alone."""
    folder = tmp_path_factory.mktemp("artifacts")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, ROOT / "scripts" / "artifacts.py", folder]
    made = subprocess.run(
        [*command, "--python", python, "--platform", platform.machine()],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, artifacts: Path) -> Iterator[Site]:
    """An edge that speaks TLS to nodes and to joining machines, with an authority of its own."""
    folder = tmp_path_factory.mktemp("joining")
    with running_site(folder) as site:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        chain, key = folder / "chain.pem", folder / "key.pem"
        chain.write_bytes(issued.cert_chain_pems[0].bytes() + authority.cert_pem.bytes())
        issued.private_key_pem.write_to_path(key)
        config = site_config(site, "http://127.0.0.1:9")
        for node in config["nodes"]:
            # A fresh machine has no key of an upstream.
            node["adapters"][0].pop("headers")
        tls = {"cert_file": str(chain), "key_file": str(key)}
        config["server"]["tls"] = tls
        config["bootstrap"] |= {"tls": tls, "artifact_dir": str(artifacts)}
        write(site, config)
        site.start_edge()
        yield site


@pytest.fixture(scope="module")
def line(site: Site) -> str:
    ran = site.iop_edge("node", "join", NODE, "--config", str(site.config))
    assert ran.exit_status == 0, ran.stderr
    assert ran.stdout.count("\n") == 1
    return ran.stdout.rstrip("\n").removeprefix("IOP_NODE_TOKEN='<token of a>' ")


class Joined(NamedTuple):
    machine: Machine
    first_output: str
    token_seen_in: list[bytes]
    environment: bytes
    exit_status: int


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, site: Site, line: str) -> Joined:
    """A fresh machine that has become the node once, and was stopped."""
    machine = Machine(tmp_path_factory.mktemp("machine") / "home")
    seen: list[bytes] = []
    with _connected(site, machine, line, typed=site.token(NODE), seen=seen) as pasted:
        environment = Path(f"/proc/{pasted.node_pid()}/environ").read_bytes()
        status = pasted.drain()
    return Joined(machine, pasted.output(), seen, environment, status)


@contextmanager
def _connected(
    site: Site,
    machine: Machine,
    line: str,
    *,
    typed: str = "",
    seen: list[bytes] | None = None,
) -> Iterator[Pasted]:
    """The line pasted, and the edge counting the node as connected."""
    token = site.token(NODE).encode()
    pasted = machine.start(line, typed=typed)

    def is_connected() -> bool:
        """the node that was pasted is connected"""
        assert pasted.process.poll() is None, pasted.output()
        if seen is not None:
            seen.extend(words for words in _command_lines() if token in words)
        return bool(site.node_status(NODE)["connected"])

    try:
        until(is_connected, timeout_s=90)
        yield pasted
    finally:
        pasted.kill()
    until(_gone(site), timeout_s=20)


def _gone(site: Site) -> Callable[[], bool]:
    def is_gone() -> bool:
        """the edge has noticed that the node is gone"""
        return not site.node_status(NODE)["connected"]

    return is_gone


@pytest.mark.req("NODE-1", "NODE-2", "SEC-3")
def test_a_fresh_machine_becomes_the_node_with_one_line(joined: Joined) -> None:
    assert joined.exit_status == 0
    assert "join: fetching" in joined.first_output


@pytest.mark.req("SEC-1")
def test_the_token_is_kept_private_and_shown_nowhere(site: Site, joined: Joined) -> None:
    kept = joined.machine.kept / "config" / "token"
    assert kept.read_text().strip() == site.token(NODE)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert joined.token_seen_in == []
    assert site.token(NODE).encode() not in joined.environment
    assert site.token(NODE) not in joined.first_output


@pytest.mark.req("NODE-2")
def test_the_same_line_again_asks_and_installs_nothing(
    site: Site, line: str, joined: Joined
) -> None:
    with _connected(site, joined.machine, line) as pasted:
        assert "fetching" not in pasted.output()
        assert "standard input" not in pasted.output()
        once_more = joined.machine.run(line)
        assert once_more == (0, "join: this node runs here already, and is connected\n")
        assert pasted.drain() == 0


@pytest.mark.req("NODE-9", "NODE-2")
def test_a_token_that_the_edge_does_not_know_ends_with_6(
    site: Site, line: str, joined: Joined, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("iop_node_00000000_" + "w" * 40)
    ended = joined.machine.run(f"{line} --token-file {wrong}")
    kept = joined.machine.kept / "config" / "token"
    try:
        assert ended.exit_status == 6
        assert "token_refused" in ended.output
        assert "wwww" not in ended.output
        assert "wwww" in kept.read_text()
    finally:
        kept.write_text(site.token(NODE))


@pytest.fixture
def fresh(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "home")


@pytest.mark.req("NODE-2")
def test_a_script_that_is_not_the_pinned_one_is_not_run(line: str, fresh: Machine) -> None:
    words = shlex.split(line)
    words[4] = "0" * 64
    ended = fresh.run(shlex.join(words))
    assert ended.exit_status == 1
    assert "nothing was run" in ended.output
    assert not fresh.kept.exists()


@pytest.mark.req("NODE-2", "SEC-3")
def test_an_edge_of_another_authority_is_not_even_asked(line: str, fresh: Machine) -> None:
    words = shlex.split(line)
    other = trustme.CA().cert_pem.bytes().decode().splitlines()[1:-1]
    words[words.index("--ca") + 1] = "".join(other)
    ended = fresh.run(shlex.join(words))
    assert ended.exit_status == 1
    assert "CERTIFICATE_VERIFY_FAILED" in ended.output
    assert not fresh.kept.exists()


@pytest.mark.req("NODE-2")
def test_another_manifest_than_the_pinned_one_is_refused(
    site: Site, line: str, fresh: Machine, artifacts: Path
) -> None:
    with _changed(artifacts / "manifest.json") as manifest:
        content = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(content))
        ended = fresh.run(line, typed=site.token(NODE))
    assert ended.exit_status == 1
    assert "other artifacts than this line was made for" in ended.output
    assert not fresh.kept.exists()


@pytest.mark.req("NODE-2")
def test_a_wheel_that_was_tampered_with_is_refused_and_nothing_is_installed(
    site: Site, line: str, fresh: Machine, artifacts: Path
) -> None:
    wheel = next(artifacts.glob("iop-*.whl"))
    with _changed(wheel):
        content = bytearray(wheel.read_bytes())
        content[len(content) // 2] ^= 1
        wheel.write_bytes(content)
        ended = fresh.run(line, typed=site.token(NODE))
    assert ended.exit_status == 1
    assert f"{wheel.name} is not the file that the manifest names" in ended.output
    assert [entry.name for entry in fresh.kept.iterdir() if entry.name.startswith("venv")] == []


@contextmanager
def _changed(file: Path) -> Iterator[Path]:
    """A file that may be changed within the block."""
    before = file.with_name("before")
    shutil.copy2(file, before)
    try:
        yield file
    finally:
        before.replace(file)
