"""The whole edge in this process: what its listeners say, and what if one cannot be had."""

from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from iop_edge.app import Edge
from iop_edge.config.load import load
from iop_edge.runtime.sources import read_sources
from iop_edge.serve.http.address import ListenError

KEY = b"k" * 32
SECTIONS = ("server", "bootstrap", "admin", "metrics")


def edge_of(folder: Path, **listens: str) -> Edge:
    """An edge without nodes, on free ports where none is given."""
    path = folder / "edge.yaml"
    lines = [
        f'{section}: {{ listen: "{listens.get(section, "127.0.0.1:0")}" }}' for section in SECTIONS
    ]
    path.write_text("\n".join(lines) + "\n")
    return Edge(load(read_sources([path], fingerprint_key=KEY)), [path], KEY)


def _listening(lines: list[dict[str, object]]) -> dict[str, str]:
    ready = next(line for line in lines if line["event"] == "edge_ready")
    addresses = ready["listening"]
    assert isinstance(addresses, dict)
    return addresses


@pytest.mark.req("OPS-3")
async def test_grpc_health_is_serving_until_the_drain_begins(tmp_path: Path) -> None:
    edge = edge_of(tmp_path)
    with capture_logs() as lines:
        async with edge.serving():
            address = _listening(lines)["server"]
            async with grpc.aio.insecure_channel(
                address, options=(("grpc.enable_http_proxy", 0),)
            ) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                asks = health_pb2.HealthCheckRequest(service="iop.NodeLink")
                serving = health_pb2.HealthCheckResponse
                assert (await health.Check(asks)).status == serving.SERVING
                await edge.drain()
                assert (await health.Check(asks)).status == serving.NOT_SERVING


@pytest.mark.req("NODE-2", "CFG-21")
async def test_the_bootstrap_listener_starts_with_the_edge(tmp_path: Path) -> None:
    edge = edge_of(tmp_path)
    with capture_logs() as lines:
        async with edge.serving(), aiohttp.ClientSession() as http:
            address = _listening(lines)["bootstrap"]
            async with http.get(f"http://{address}/join.py") as answer:
                assert answer.status == 200
                assert (await answer.text()).startswith('"""Makes the machine')


@pytest.mark.req("CFG-21")
@pytest.mark.parametrize("section", SECTIONS)
async def test_a_port_that_is_taken_is_named_and_nothing_is_left_listening(
    tmp_path: Path, section: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        edge = edge_of(tmp_path, **{section: address})
        with pytest.raises(ListenError, match=address):
            async with edge.serving():
                pytest.fail("it must not come up")
