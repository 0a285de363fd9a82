"""gRPC reflection: the names of the services and the files that describe them, for tools (OPS-3).

It tells what stands in the protocol's public description and nothing of the edge: no other file
that the process happens to have loaded. Served only where `server.grpc_reflection` asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from iop import health_pb2, reflection_pb2
from iop.reflection_pb2 import (
    ErrorResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from iop_edge.serve import grpc_health
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.server import Method, ServerCall

SERVICE_NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both versions say the same on the wire."""

MAX_REQUEST_BYTES = 4096


class ReflectionService:
    """Serves `ServerReflectionInfo`, which answers one question after the other. A service that no
    loaded file describes is named, and not described."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted({*services, *SERVICE_NAMES})
        self._public = _description(self._services)

    def methods(self) -> Mapping[str, Method]:
        return {"ServerReflectionInfo": Method(self._answer_all, MAX_REQUEST_BYTES)}

    async def _answer_all(self, call: ServerCall) -> None:
        while (message := await call.read()) is not None:
            try:
                request = ServerReflectionRequest.FromString(message)
            except DecodeError:
                raise RpcError(StatusCode.INVALID_ARGUMENT, "no ServerReflectionRequest") from None
            await call.write(self._answer(request).SerializeToString())

    def _answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        answer = ServerReflectionResponse(valid_host=request.host, original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                named = [ServiceResponse(name=name) for name in self._services]
                answer.list_services_response.CopyFrom(ListServiceResponse(service=named))
            case "file_by_filename" | "file_containing_symbol" as kind:
                try:
                    found = self._found(kind, request)
                except KeyError:
                    answer.error_response.CopyFrom(
                        ErrorResponse(
                            error_code=StatusCode.NOT_FOUND, error_message="not described here"
                        )
                    )
                else:
                    files = [_serialized(file) for file in _with_imports(found)]
                    answer.file_descriptor_response.CopyFrom(
                        FileDescriptorResponse(file_descriptor_proto=files)
                    )
            case _:
                answer.error_response.CopyFrom(
                    ErrorResponse(
                        error_code=StatusCode.UNIMPLEMENTED, error_message="not answered here"
                    )
                )
        return answer

    def _found(self, kind: str, request: ServerReflectionRequest) -> FileDescriptor:
        """Raises KeyError."""
        if kind == "file_by_filename":
            return self._public.FindFileByName(request.file_by_filename)
        return self._public.FindFileContainingSymbol(request.file_containing_symbol)


class _Standard(NamedTuple):
    """A service of gRPC itself, whose messages have names of our own here (proto/iop)."""

    messages: FileDescriptor
    methods: tuple[tuple[str, str, str, bool, bool], ...]
    """Name, request, response, and which of them are streams."""


_HEALTH = _Standard(
    health_pb2.DESCRIPTOR,
    (
        ("Check", "HealthCheckRequest", "HealthCheckResponse", False, False),
        ("Watch", "HealthCheckRequest", "HealthCheckResponse", False, True),
    ),
)
_REFLECTION = _Standard(
    reflection_pb2.DESCRIPTOR,
    (("ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse", True, True),),
)
_STANDARD = {grpc_health.SERVICE_NAME: _HEALTH, **dict.fromkeys(SERVICE_NAMES, _REFLECTION)}


def _description(services: Iterable[str]) -> DescriptorPool:
    """Of these services and what they need, and of nothing else."""
    public = DescriptorPool()
    for name in services:
        if name in _STANDARD:
            public.AddSerializedFile(_under_its_own_name(name).SerializeToString())
            continue
        try:
            file = descriptor_pool.Default().FindFileContainingSymbol(name)
        except KeyError:
            continue
        for needed in reversed(_with_imports(file)):
            public.AddSerializedFile(_serialized(needed))
    return public


def _under_its_own_name(service: str) -> FileDescriptorProto:
    """A standard service as gRPC describes it: a tool looks for it by its name."""
    package, _, short_name = service.rpartition(".")
    messages, methods = _STANDARD[service]
    file = FileDescriptorProto()
    messages.CopyToProto(file)
    file.name = f"{package.replace('.', '/')}/{short_name.lower()}.proto"
    old, file.package = file.package, package
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(f".{old}.", f".{package}.", 1)
        for enum in message.enum_type:
            for value in enum.value:
                value.name = value.name.removeprefix("SERVING_STATUS_")
                value.name = "UNKNOWN" if value.name == "UNSPECIFIED" else value.name
    described = file.service.add(name=short_name)
    for name, request, response, is_asked_often, is_answered_often in methods:
        described.method.add(
            name=name,
            input_type=f".{package}.{request}",
            output_type=f".{package}.{response}",
            client_streaming=is_asked_often,
            server_streaming=is_answered_often,
        )
    return file


def _serialized(file: FileDescriptor) -> bytes:
    serialized: bytes = file.serialized_pb
    return serialized


def _with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """The file first, then everything that it needs, once each, and none before what needs it."""
    found: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        found.pop(each.name, None)
        found[each.name] = each
        waiting += each.dependencies
    return list(found.values())
