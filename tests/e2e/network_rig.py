"""A node on a network of its own, whose link to the edge can be cut in every way that links fail.

The node lives in a network namespace behind a veth pair; the edge and everything else stay where
they are. Rules stand inside the namespace only, and go with it. The upstream is reached through a
relay on the same wire, so that cutting the edge's port leaves it reachable.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from e2e_harness import UPSTREAM_KEY, Config, Edge, running_site, site_config, write

from demo.processes import Process
from demo.site import NODE, Site

_TOOLS = ("ip", "iptables", "ss")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
KILLED = {name: {0, 7, -9} for name in ("edge", "node-a", "node-b")}


class Wire:
    """One namespace and the veth pair into it. `near` is the address outside, `far` within."""

    def __init__(self, name: str, subnet: int) -> None:
        self.name = name
        base = f"198.18.{subnet >> 6}.{(subnet & 63) * 4}".rpartition(".")
        self.near = f"{base[0]}.{int(base[2]) + 1}"
        self.far = f"{base[0]}.{int(base[2]) + 2}"

    def within(self, *command: str) -> str:
        """Run a command inside the namespace and return what it prints."""
        return _run("ip", "netns", "exec", self.name, *command)

    def cut(self, port: int) -> None:
        """From now on every packet to and from this port is lost without a word, both ways."""
        self.within("iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", f"{port}", "-j", "DROP")
        self.within("iptables", "-A", "INPUT", "-p", "tcp", "--sport", f"{port}", "-j", "DROP")

    def reset(self, port: int) -> None:
        """Every connection to this port is reset: both ends hear it."""
        self._kill("dport", port)

    def reset_inside_only(self, local_port: int) -> None:
        """The connection from this local port breaks at its inner end; the outer hears nothing."""
        own = ("-p", "tcp", "--sport", f"{local_port}")
        self.within("iptables", "-A", "OUTPUT", *own, "-j", "DROP")
        self.within(
            "iptables", "-A", "INPUT", "-p", "tcp", "--dport", f"{local_port}", "-j", "DROP"
        )
        self._kill("sport", local_port)

    def _kill(self, end: str, port: int) -> None:
        killed = self.within("ss", "-K", "-Htn", end, "=", f":{port}")
        if not killed.strip():
            pytest.skip("this kernel lets nobody reset a connection (ss -K)")

    def mend(self) -> None:
        """Every rule is gone."""
        self.within("iptables", "-F")

    def local_ports(self, to_port: int) -> list[int]:
        """Inner ends of the connections that stand to this port of the outside."""
        listed = self.within("ss", "-Htn", "state", "established", "dport", "=", f":{to_port}")
        return [int(line.split()[2].rpartition(":")[2]) for line in listed.splitlines()]


def _run(*command: str) -> str:
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=20, env={**os.environ, "PATH": _PATH}
    )
    if ran.returncode:
        raise OSError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


@contextmanager
def wire() -> Iterator[Wire]:
    """A wire, or a skipped test where this machine lets nobody make one."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        pytest.skip(f"no network namespaces: {', '.join(missing)} cannot be found")
    made = Wire(f"iop-{secrets.token_hex(4)}", secrets.randbelow(256 * 64))
    outer, inner = f"{made.name}o"[-15:], f"{made.name}i"[-15:]
    try:
        _run("ip", "netns", "add", made.name)
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")
    try:
        try:
            _run(
                "ip", "link", "add", outer, "type", "veth", "peer", "name", inner,
                "netns", made.name,
            )  # fmt: skip
            _run("ip", "addr", "add", f"{made.near}/30", "dev", outer)
            _run("ip", "link", "set", outer, "up")
            made.within("ip", "addr", "add", f"{made.far}/30", "dev", inner)
            made.within("ip", "link", "set", inner, "up")
            made.within("ip", "link", "set", "lo", "up")
            made.within("iptables", "-L", "-n")
        except OSError as error:
            pytest.skip(f"no network namespaces: {error}")
        yield made
    finally:
        with suppress(OSError):
            _run("ip", "link", "del", outer)
        _run("ip", "netns", "del", made.name)


@asynccontextmanager
async def relay(host: str, url: str) -> AsyncIterator[str]:
    """The server at `url`, reachable on `host` too; the URL there."""
    there = urlsplit(url)

    carrying: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(there.hostname, there.port)
        both = [asyncio.create_task(carry(*pair)) for pair in ((reader, ours), (theirs, writer))]
        try:
            # Whichever end goes away takes the other with it.
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task, end in zip(both, (ours, writer), strict=True):
                task.cancel()
                end.close()
            await asyncio.gather(*both, return_exceptions=True)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(join(reader, writer))
        carrying.add(task)
        task.add_done_callback(carrying.discard)

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)


class CutSite(Edge):
    """A site whose node a is on a wire of its own; node b is where the edge is."""

    def __init__(self, site: Site, http: aiohttp.ClientSession, wire: Wire, config: Config) -> None:
        super().__init__(site, http)
        self.wire = wire
        self.config = config
        self._environment = {
            "IOP_EDGE": f"{wire.near}:{site.ports.grpc}",
            "IOP_EDGE_INSECURE": "1",
            "E2E_UPSTREAM_KEY": UPSTREAM_KEY,
        }

    @property
    def port(self) -> int:
        """Of the edge, where nodes dial it."""
        return self.site.ports.grpc

    def start_node_a(self) -> Process:
        environment = {**self._environment, "IOP_NODE_TOKEN": self.site.token("a")}
        command: list[str | Path] = ["ip", "netns", "exec", self.wire.name, NODE, "run"]
        process = self.site.group.start("node-a", command, {"PATH": _PATH, **environment})
        self.site.nodes["a"] = process
        return process

    def start_node_b(self) -> Process:
        return self.site.start_node("b", env=self._environment)

    async def start(self, *node_ids: str) -> None:
        """The edge and these nodes, connected."""
        await asyncio.to_thread(self.site.start_edge)
        for node_id in node_ids:
            self.start_node_a() if node_id == "a" else self.start_node_b()
        await asyncio.to_thread(self.site.wait_connected, *node_ids)

    def connections(self) -> int:
        """Connections of nodes that the edge's machine holds as established."""
        listed = _run("ss", "-Htn", "state", "established", "sport", "=", f":{self.port}")
        return len(listed.splitlines())


@asynccontextmanager
async def cut_site(folder: Path, upstream_url: str) -> AsyncIterator[CutSite]:
    """A site on a wire, not started yet. Processes may be killed."""
    with wire() as made, running_site(folder, expected=KILLED) as site:
        async with relay(made.near, upstream_url) as upstream, aiohttp.ClientSession() as http:
            config = site_config(site, upstream)
            # Others only see what is on the wire, so the edge listens there.
            config["server"] |= {"listen": f"{made.near}:{site.ports.grpc}", "insecure": True}
            write(site, config)
            yield CutSite(site, http, made, config)
