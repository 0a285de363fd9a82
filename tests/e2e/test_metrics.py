"""What a real edge and a real node serve to Prometheus, in Prometheus' own opinion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from e2e_harness import UPSTREAM_KEY, Edge, chat, prompt, running_site, site_config, write

from demo.processes import free_ports
from tests.edge.serve.metrics_rig import promtool

pytestmark = pytest.mark.e2e


@pytest.mark.req("OPS-3", "SEC-1")
async def test_prometheus_finds_nothing_to_complain_of_in_what_is_served(
    tmp_path: Path, small_upstream_url: str
) -> None:
    with running_site(tmp_path) as site:
        write(site, site_config(site, small_upstream_url))
        [port] = free_ports(1)
        await asyncio.to_thread(site.start_edge)
        told = {"E2E_UPSTREAM_KEY": UPSTREAM_KEY, "IOP_NODE_METRICS": f"127.0.0.1:{port}"}
        site.start_node("a", env=told)
        await asyncio.to_thread(site.wait_connected, "a")
        async with aiohttp.ClientSession() as http:
            async with Edge(site, http).call(chat("pair", prompt("metrics"))) as call:
                assert b"200 OK" in await call.rest()
            for served, counted in (
                (site.ports.metrics, b"iop_edge_runs_total{"),
                (port, b"iop_node_attempts_total{"),
            ):
                async with http.get(f"http://127.0.0.1:{served}/metrics") as answer:
                    text = await answer.read()
                assert counted in text
                checked = promtool("check", "metrics", stdin=text)
                assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
