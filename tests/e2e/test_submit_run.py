"""Programs that do not speak HTTP submit runs over gRPC, through the same service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from e2e_harness import CALLER_TOKEN, HANG_UP_DEADLINE_S, Config, Edge, Upstream, prompt

from demo.site import Site
from demo.small_upstream import words_for
from iop import runtime_pb2
from tests.wire import runtime_pb2_grpc

pytestmark = pytest.mark.e2e

AUTHORIZATION = (("authorization", f"Bearer {CALLER_TOKEN}"),)


@pytest.fixture
async def ingress(
    shared_site: tuple[Site, Config],
) -> AsyncIterator[runtime_pb2_grpc.RunIngressStub]:
    site, _ = shared_site
    async with grpc.aio.insecure_channel(f"127.0.0.1:{site.ports.grpc}") as channel:
        yield runtime_pb2_grpc.RunIngressStub(channel)


def _submission(content: str) -> runtime_pb2.SubmitRunRequest:
    part = runtime_pb2.ContentPart(text=content)
    return runtime_pb2.SubmitRunRequest(
        model="pair", messages=[runtime_pb2.ChatMessage(role="user", parts=[part])]
    )


@pytest.mark.req("OAI-6")
async def test_a_program_without_http_submits_a_run(
    edge: Edge, ingress: runtime_pb2_grpc.RunIngressStub
) -> None:
    asked = prompt("submitted")
    events = [
        event async for event in ingress.SubmitRun(_submission(asked), metadata=AUTHORIZATION)
    ]
    kinds = [event.WhichOneof("event") for event in events]
    assert (kinds[0], kinds[-1]) == ("accepted", "end")
    text = "".join(event.text_delta for event in events)
    assert text == "".join(words_for(asked, 24))
    assert events[-1].end.finish_reason == "stop"
    assert events[-1].end.usage.output_tokens == 24


@pytest.mark.req("OAI-6", "NODE-7", "POOL-6")
async def test_a_program_that_cancels_its_run_closes_the_upstream(
    edge: Edge, upstream: Upstream, ingress: runtime_pb2_grpc.RunIngressStub
) -> None:
    await upstream.plan("cancelled", hold_before_head=True)
    call = ingress.SubmitRun(_submission(prompt("cancelled")), metadata=AUTHORIZATION)
    await upstream.seen("cancelled", "held")
    call.cancel()
    await upstream.seen("cancelled", "closed", within_s=HANG_UP_DEADLINE_S)
    await edge.until_idle(within_s=HANG_UP_DEADLINE_S)


@pytest.mark.req("OAI-3", "OAI-6")
async def test_a_program_without_a_token_is_refused(
    edge: Edge, ingress: runtime_pb2_grpc.RunIngressStub
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in ingress.SubmitRun(_submission("x")):
            pass
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
