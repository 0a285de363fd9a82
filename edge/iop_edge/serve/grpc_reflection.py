"""gRPC reflection: the names of the services and the files that describe them, for tools (OPS-3).

It tells what stands in the protocol's public description and nothing of the edge. Served only
where `server.grpc_reflection` asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError

from iop.reflection_pb2 import (
    ErrorResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.server import Method, ServerCall

SERVICE_NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both versions say the same on the wire."""

MAX_REQUEST_BYTES = 4096


class ReflectionService:
    """Serves `ServerReflectionInfo`, which answers one question after the other."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted({*services, *SERVICE_NAMES})

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
        answer = ServerReflectionResponse(original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                named = [ServiceResponse(name=name) for name in self._services]
                answer.list_services_response.CopyFrom(ListServiceResponse(service=named))
            case "file_by_filename" | "file_containing_symbol" as kind:
                try:
                    found = _found(kind, request)
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


def _found(kind: str, request: ServerReflectionRequest) -> FileDescriptor:
    """Raises KeyError."""
    if kind == "file_by_filename":
        return Default().FindFileByName(request.file_by_filename)
    return Default().FindFileContainingSymbol(request.file_containing_symbol)


def _serialized(file: FileDescriptor) -> bytes:
    serialized: bytes = file.serialized_pb
    return serialized


def _with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """The file first, then everything that it needs, once each."""
    found: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each
            waiting += each.dependencies
    return list(found.values())
