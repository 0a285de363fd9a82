from __future__ import annotations

import asyncio
import re
import socket

import aiohttp
import pytest
from structlog.testing import capture_logs

from iop.runtime_pb2 import RunRequest
from iop_node.adapters.base import Responder, RunCall, RunEvent, TextDelta, TunnelCall
from iop_node.identity import SettingsInvalid
from iop_node.metrics import NodeMetrics, NodeState
from iop_node.runtime.router import Attempt
from iop_node.settings import read_settings
from iop_shared.errors import Code, Fault
from iop_shared.ids import AdapterKey, Target

STATE = NodeState(
    is_connected=True,
    session=7,
    generation=3,
    active_runs=2,
    draining_registries=1,
    dropped_frames={"late": 4, "old_epoch": 5},
)

TUNNEL = Attempt(
    work=TunnelCall(
        adapter=AdapterKey("vllm-main"),
        target=Target("t"),
        operation="chat_completions",
        body=b"prompt-canary",
    )
)
RUN = Attempt(work=RunCall(adapter=AdapterKey("ollama"), target=Target("t"), request=RunRequest()))


class Out:
    """A responder that keeps what it is given."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def started(self) -> None:
        self.heard.append("started")

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.heard.append((status, headers))

    async def chunk(self, content: bytes) -> None:
        self.heard.append(content)

    async def event(self, event: RunEvent) -> None:
        self.heard.append(event)


async def scraped(metrics: NodeMetrics, state: NodeState = STATE) -> dict[str, float]:
    """Sample names with labels to values, over a real socket."""
    with capture_logs() as lines:
        async with metrics.serving("127.0.0.1:0", lambda: state), aiohttp.ClientSession() as http:
            address = next(line["address"] for line in lines if line["event"] == "metrics_ready")
            async with http.get(f"http://{address}/metrics") as answer:
                assert answer.status == 200
                text = await answer.text()
            async with http.get(f"http://{address}/other") as answer:
                assert answer.status == 404
    assert "canary" not in text
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


@pytest.mark.req("OPS-3")
async def test_a_scrape_shows_the_state_of_that_moment() -> None:
    samples = await scraped(NodeMetrics())
    assert samples["iop_node_connected"] == 1
    assert samples["iop_node_session"] == 7
    assert samples["iop_node_effective_generation"] == 3
    assert samples["iop_node_active_runs"] == 2
    assert samples["iop_node_draining_registries"] == 1
    assert samples['iop_node_dropped_frames_total{reason="late"}'] == 4
    assert samples['iop_node_dropped_frames_total{reason="old_epoch"}'] == 5


@pytest.mark.req("OPS-3", "SEC-1")
async def test_every_name_begins_with_iop_node_and_every_label_is_an_id_or_a_code() -> None:
    metrics = NodeMetrics()
    await metrics.observing(_answers)(TUNNEL, Out())
    for name in await scraped(metrics):
        assert name.startswith("iop_node_")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
        assert labels.keys() <= {"adapter", "end", "reason", "le"}


async def _answers(attempt: Attempt, out: Responder) -> None:
    out.started()
    out.head(200, [("a", "b")])
    await out.chunk(b"x")
    await out.chunk(b"y")


async def _speaks(attempt: Attempt, out: Responder) -> None:
    out.started()
    await out.event(TextDelta("x"))
    await out.event(TextDelta("y"))


async def _refuses(attempt: Attempt, out: Responder) -> None:
    raise Fault(Code.UPSTREAM_REFUSED, "the upstream refused")


async def _fails(attempt: Attempt, out: Responder) -> None:
    out.started()
    raise RuntimeError("a bug")


@pytest.mark.req("OPS-3")
async def test_an_attempt_is_counted_under_its_end_and_what_it_says_passes_unchanged() -> None:
    metrics = NodeMetrics()
    out, spoken = Out(), Out()
    await metrics.observing(_answers)(TUNNEL, out)
    await metrics.observing(_speaks)(RUN, spoken)
    with pytest.raises(Fault, match="refused"):
        await metrics.observing(_refuses)(TUNNEL, Out())
    with pytest.raises(RuntimeError):
        await metrics.observing(_fails)(TUNNEL, Out())
    assert out.heard == ["started", (200, [("a", "b")]), b"x", b"y"]
    assert spoken.heard == ["started", TextDelta("x"), TextDelta("y")]
    samples = await scraped(metrics)
    ends = {name: value for name, value in samples.items() if "attempts" in name}
    assert ends == {
        'iop_node_attempts_total{adapter="vllm-main",end="completed"}': 1,
        'iop_node_attempts_total{adapter="ollama",end="completed"}': 1,
        'iop_node_attempts_total{adapter="vllm-main",end="error:upstream_refused"}': 1,
        'iop_node_attempts_total{adapter="vllm-main",end="error:internal"}': 1,
    }


@pytest.mark.req("OPS-3")
async def test_the_first_byte_is_timed_once_and_only_where_an_answer_began() -> None:
    metrics = NodeMetrics()
    await metrics.observing(_answers)(TUNNEL, Out())
    await metrics.observing(_speaks)(RUN, Out())
    with pytest.raises(RuntimeError):
        await metrics.observing(_fails)(TUNNEL, Out())
    samples = await scraped(metrics)
    for adapter in ("vllm-main", "ollama"):
        name = f'iop_node_upstream_first_byte_seconds_count{{adapter="{adapter}"}}'
        assert samples[name] == 1


@pytest.mark.req("OPS-3", "NODE-7")
async def test_a_cancelled_attempt_is_counted_as_cancelled() -> None:
    metrics = NodeMetrics()
    has_begun = asyncio.Event()

    async def waits(attempt: Attempt, out: Responder) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def run() -> None:
        await metrics.observing(waits)(TUNNEL, Out())

    task = asyncio.create_task(run())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    samples = await scraped(metrics)
    assert samples['iop_node_attempts_total{adapter="vllm-main",end="cancelled"}'] == 1


async def test_without_an_address_nothing_listens() -> None:
    with capture_logs() as lines:
        async with NodeMetrics().serving(None, lambda: STATE):
            pass
    assert lines == []


@pytest.mark.req("NODE-1")
async def test_an_address_that_is_taken_is_named_with_its_variable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsInvalid, match=f"IOP_NODE_METRICS: {address}"):
            async with NodeMetrics().serving(address, lambda: STATE):
                pass


@pytest.mark.req("NODE-1")
@pytest.mark.parametrize("address", ["9465", "127.0.0.1:", ":9465", "127.0.0.1:99999", "h:x"])
def test_an_address_that_is_none_is_refused_at_the_start(address: str) -> None:
    environment = {"IOP_EDGE": "e:1", "IOP_NODE_TOKEN": "t" * 40, "IOP_NODE_METRICS": address}
    with pytest.raises(SettingsInvalid, match="IOP_NODE_METRICS"):
        read_settings(environment)
