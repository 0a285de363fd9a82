"""Health and reflection of the gRPC listener, asked by a peer that has no token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from iop_edge.config.effective import Server
from iop_edge.serve.grpc_health import MAX_WATCHERS
from iop_edge.serve.grpc_listener import GrpcListener
from iop_shared.rpc.server import Method

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
NODE_LINK = "iop.NodeLink"


class NoMethods:
    def methods(self) -> Mapping[str, Method]:
        return {}


def listener(**config: bool) -> GrpcListener:
    return GrpcListener(Server(listen="127.0.0.1:0", **config), {NODE_LINK: NoMethods()})


@pytest.fixture
async def serving() -> AsyncIterator[GrpcListener]:
    async with listener() as up:
        yield up


def channel(to: GrpcListener) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        to.address, options=(("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    )


def asks(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("service", ["", NODE_LINK])
async def test_health_follows_what_the_edge_says_of_itself(
    serving: GrpcListener, service: str
) -> None:
    async with channel(serving) as to:
        health = health_pb2_grpc.HealthStub(to)
        assert (await health.Check(asks(service))).status == NOT_SERVING
        serving.set_serving(True)
        assert (await health.Check(asks(service))).status == SERVING
        serving.set_serving(False)
        assert (await health.Check(asks(service))).status == NOT_SERVING


@pytest.mark.req("OPS-3")
async def test_a_watcher_hears_that_a_drain_has_begun(serving: GrpcListener) -> None:
    serving.set_serving(True)
    async with channel(serving) as to, asyncio.timeout(10):
        watch = health_pb2_grpc.HealthStub(to).Watch(asks())
        assert (await watch.read()).status == SERVING
        serving.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING


@pytest.mark.req("OPS-3", "SEC-1")
async def test_health_tells_nothing_of_what_is_no_service(serving: GrpcListener) -> None:
    async with channel(serving) as to, asyncio.timeout(10):
        health = health_pb2_grpc.HealthStub(to)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(asks("gpu-a"))
        assert (await health.Watch(asks("gpu-a")).read()).status == UNKNOWN
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_are_limited_and_a_place_comes_free_again(serving: GrpcListener) -> None:
    async with channel(serving) as to, asyncio.timeout(10):
        health = health_pb2_grpc.HealthStub(to)
        watches = [health.Watch(asks()) for _ in range(MAX_WATCHERS)]
        for watch in watches:
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Watch(asks()).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watches[0].cancel()
        is_free = False
        while not is_free:
            with suppress(grpc.aio.AioRpcError):
                is_free = (await health.Watch(asks()).read()).status == NOT_SERVING


@pytest.mark.req("OPS-3")
async def test_without_the_key_there_is_no_health_service() -> None:
    async with listener(grpc_health=False) as up, channel(up) as to:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(to).Check(asks())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def _reflected(to: grpc.aio.Channel) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(to)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="*")])
    )
    return [service.name for service in (await call.read()).list_services_response.service]


@pytest.mark.req("OPS-3")
async def test_reflection_names_the_services_where_it_is_switched_on() -> None:
    async with listener(grpc_reflection=True) as up, channel(up) as to:
        assert {NODE_LINK, "grpc.health.v1.Health"} <= set(await _reflected(to))


@pytest.mark.req("OPS-3", "CFG-21")
async def test_reflection_is_off_by_default(serving: GrpcListener) -> None:
    async with channel(serving) as to:
        # Nothing is asked: the library breaks off where a call ends before it has spoken.
        call = reflection_pb2_grpc.ServerReflectionStub(to).ServerReflectionInfo(iter([]))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
