"""Reflection as tools use it: they ask for names, then for files, and build messages of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from iop.runtime_pb2 import NodeBatch
from iop_edge.config.effective import Server
from iop_edge.serve.grpc_health import SERVICE_NAME as HEALTH
from iop_edge.serve.grpc_listener import GrpcListener
from iop_edge.serve.grpc_reflection import MAX_REQUEST_BYTES, SERVICE_NAMES
from iop_edge.serve.node_link import SERVICE_NAME as NODE_LINK
from iop_edge.serve.submit_run import SERVICE_NAME as RUN_INGRESS
from iop_shared.rpc.server import Method

pytestmark = pytest.mark.req("OPS-3")

Request = reflection_pb2.ServerReflectionRequest
Response = reflection_pb2.ServerReflectionResponse
Found = TypeVar("Found")

OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


class NoMethods:
    def methods(self) -> Mapping[str, Method]:
        return {}


@pytest.fixture
async def serving() -> AsyncIterator[GrpcListener]:
    services = {NODE_LINK: NoMethods(), RUN_INGRESS: NoMethods(), "mine.Undescribed": NoMethods()}
    async with (
        asyncio.timeout(20),
        GrpcListener(Server(listen="127.0.0.1:0", grpc_reflection=True), services) as up,
    ):
        yield up


@asynccontextmanager
async def asked(to: GrpcListener) -> AsyncIterator[grpc.aio.StreamStreamCall]:
    async with grpc.aio.insecure_channel(to.address, options=OPTIONS) as channel:
        yield reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()


async def answer(to: GrpcListener, request: Request) -> Response:
    async with asked(to) as call:
        await call.write(request)
        response: Response = await call.read()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    assert response.original_request == request
    return response


def described(response: Response) -> dict[str, FileDescriptorProto]:
    files = [
        FileDescriptorProto.FromString(raw)
        for raw in response.file_descriptor_response.file_descriptor_proto
    ]
    return {file.name: file for file in files}


async def as_a_tool(to: GrpcListener, do: Callable[[DescriptorPool], Found]) -> Found:
    """With the library's own pool, which asks the server for whatever it does not know."""

    def ask() -> Found:
        with grpc.insecure_channel(to.address, options=OPTIONS) as channel:
            return do(DescriptorPool(ProtoReflectionDescriptorDatabase(channel)))

    return await asyncio.to_thread(ask)


async def test_every_service_is_named(serving: GrpcListener) -> None:
    response = await answer(serving, Request(list_services="*"))
    names = [service.name for service in response.list_services_response.service]
    assert names == sorted([NODE_LINK, RUN_INGRESS, HEALTH, "mine.Undescribed", *SERVICE_NAMES])


@pytest.mark.parametrize("service", [NODE_LINK, RUN_INGRESS, HEALTH, *SERVICE_NAMES])
async def test_a_tool_finds_every_service_with_its_methods_and_messages(
    serving: GrpcListener, service: str
) -> None:
    def methods(pool: DescriptorPool) -> set[tuple[str, str]]:
        found = pool.FindServiceByName(service)
        return {(each.name, each.input_type.full_name) for each in found.methods}

    package = service.rpartition(".")[0]
    requests = {
        NODE_LINK: {("Session", "iop.NodeBatch")},
        RUN_INGRESS: {("SubmitRun", "iop.SubmitRunRequest")},
        HEALTH: {(name, f"{package}.HealthCheckRequest") for name in ("Check", "Watch")},
    }
    reflection = {("ServerReflectionInfo", f"{package}.ServerReflectionRequest")}
    assert await as_a_tool(serving, methods) == requests.get(service, reflection)


async def test_a_tool_reads_an_answer_with_what_it_was_told(serving: GrpcListener) -> None:
    def text(pool: DescriptorPool) -> str:
        answer = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("grpc.health.v1.HealthCheckResponse")
        )
        raw = health_pb2.HealthCheckResponse(
            status=health_pb2.HealthCheckResponse.NOT_SERVING
        ).SerializeToString()
        return str(answer.FromString(raw))

    assert await as_a_tool(serving, text) == "status: NOT_SERVING\n"


async def test_health_is_described_as_the_library_describes_it(serving: GrpcListener) -> None:
    response = await answer(serving, Request(file_containing_symbol=HEALTH))
    [ours] = described(response).values()
    theirs = FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(theirs)
    for name in ("HealthCheckRequest", "HealthCheckResponse"):
        [own] = [each for each in ours.message_type if each.name == name]
        [other] = [each for each in theirs.message_type if each.name == name]
        for each in (own, other):
            for field in each.field:
                field.ClearField("json_name")
        assert own == other


async def test_a_file_comes_with_all_that_it_needs(serving: GrpcListener) -> None:
    response = await answer(serving, Request(file_containing_symbol="iop.NodeBatch.frames"))
    files = described(response)
    assert next(iter(files)) == NodeBatch.DESCRIPTOR.file.name
    assert {needed for file in files.values() for needed in file.dependency} <= set(files)
    again = await answer(serving, Request(file_by_filename=next(iter(files))))
    assert described(again) == files


@pytest.mark.parametrize(
    "request_",
    [
        Request(file_containing_symbol="iop.NoSuchThing"),
        Request(file_containing_symbol="mine.Undescribed"),
        Request(file_containing_symbol=""),
        Request(file_by_filename="no/such.proto"),
        # What follows is loaded in this very process, and belongs to no service.
        Request(file_by_filename=health_pb2.DESCRIPTOR.name),
        Request(file_by_filename="google/protobuf/descriptor.proto"),
        Request(file_containing_symbol="google.protobuf.FileDescriptorProto"),
    ],
)
async def test_what_no_service_needs_is_not_described(
    serving: GrpcListener, request_: Request
) -> None:
    response = await answer(serving, request_)
    assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize(
    "request_", [Request(all_extension_numbers_of_type="iop.NodeBatch"), Request()]
)
async def test_what_is_not_answered_is_told_so(serving: GrpcListener, request_: Request) -> None:
    async with asked(serving) as call:
        await call.write(request_)
        response: Response = await call.read()
    assert response.error_response.error_code == grpc.StatusCode.UNIMPLEMENTED.value[0]


async def test_one_call_answers_one_question_after_the_other(serving: GrpcListener) -> None:
    async with asked(serving) as call:
        for number in range(50):
            await call.write(Request(host=str(number), list_services=""))
            response: Response = await call.read()
            assert response.valid_host == str(number)


async def test_a_question_too_long_is_refused(serving: GrpcListener) -> None:
    async with asked(serving) as call:
        await call.write(Request(file_by_filename="x" * MAX_REQUEST_BYTES))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_question_that_is_none_is_refused(serving: GrpcListener) -> None:
    async with grpc.aio.insecure_channel(serving.address, options=OPTIONS) as channel:
        call = channel.stream_stream(f"/{SERVICE_NAMES[0]}/ServerReflectionInfo")()
        await call.write(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
