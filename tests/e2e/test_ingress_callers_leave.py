"""Fifty callers leave a silent upstream: every slot is back, and every upstream is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import grpc
import pytest
from e2e_harness import CALLER_TOKEN, HANG_UP_DEADLINE_S, PROMPT_CANARY, Edge, RawCall
from ingress_rig import Rig

from iop import runtime_pb2
from tests.wire import runtime_pb2_grpc

pytestmark = pytest.mark.e2e

CALLERS = 50
Leave = Callable[[], object]


@pytest.fixture
async def edge(ingress: Rig) -> AsyncIterator[Edge]:
    async with aiohttp.ClientSession() as http:
        yield Edge(ingress.site, http)


async def call_http(ingress: Rig, path: str, **more: Any) -> Leave:
    body = {"model": "silent", "max_tokens": 5, "messages": _spoken(), **more}
    if path == "responses":
        del body["messages"], body["max_tokens"]
        body["input"] = PROMPT_CANARY
    call = await RawCall.start(f"{ingress.site.openai_url}/{path}", body)
    return call.hang_up


def _spoken() -> list[dict[str, str]]:
    return [{"role": "user", "content": PROMPT_CANARY}]


def _submission(model: str) -> runtime_pb2.SubmitRunRequest:
    part = runtime_pb2.ContentPart(text=PROMPT_CANARY)
    return runtime_pb2.SubmitRunRequest(
        model=model, messages=[runtime_pb2.ChatMessage(role="user", parts=[part])]
    )


@pytest.mark.req("NODE-7", "POOL-6", "POOL-2", "OAI-6")
@pytest.mark.parametrize(
    ("surface", "stream"),
    [
        ("chat/completions", False),
        ("chat/completions", True),
        ("responses", False),
        ("responses", True),
        ("messages", False),
        ("messages", True),
        ("submit_run", True),
    ],
)
async def test_callers_who_leave_before_the_first_byte_give_back_every_slot_once(
    ingress: Rig, edge: Edge, surface: str, stream: bool
) -> None:
    upstream = ingress.upstream
    already = len(upstream.of("silent-1", "silent-2"))
    async with AsyncExitStack() as ends:
        leave: list[Leave] = []
        if surface == "submit_run":
            channel = await ends.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{ingress.site.ports.grpc}")
            )
            stub = runtime_pb2_grpc.RunIngressStub(channel)
            metadata = (("authorization", f"Bearer {CALLER_TOKEN}"),)
            for _ in range(CALLERS):
                leave.append(stub.SubmitRun(_submission("silent"), metadata=metadata).cancel)
        else:
            for _ in range(CALLERS):
                leave.append(await call_http(ingress, surface, stream=stream))
        asked = await upstream.until_asked(already + CALLERS, "silent-1", "silent-2")
        mine = asked[already:]
        loads = {p["provider_id"]: p["in_flight"] for p in (await edge.status())["providers"]}
        assert loads["p-silent-1"] == loads["p-silent-2"] == CALLERS // 2
        for each in leave:
            each()
        await upstream.until_closed(mine, within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)

    # Nothing leaked and nothing was given back twice: what comes now is spread evenly.
    before = len(upstream.of("fine-1", "fine-2"))
    headers = {"authorization": f"Bearer {CALLER_TOKEN}"}
    body = {"model": "pair", "messages": _spoken()}
    for _ in range(6):
        url = f"{ingress.site.openai_url}/chat/completions"
        async with edge.http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
    later = Counter(each.model for each in upstream.of("fine-1", "fine-2")[before:])
    assert later == {"fine-1": 3, "fine-2": 3}
    runs = (await edge.admin(f"/runs?limit={6 + CALLERS}"))["runs"]
    ends_of_silent = Counter(run["run"]["end"] for run in runs if run["run"]["model"] == "silent")
    assert ends_of_silent == {"cancelled": CALLERS}
