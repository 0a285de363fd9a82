"""The ingress as an OpenAPI 3.1 document, made from the tables that the ingress runs by.

It states what this system decides: paths, what it checks of a request, how it answers and fails.
The protocols themselves are described by those who made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from iop_edge.serve.dialect.caller_protocols import CALLER_PROTOCOLS, CallerProtocol
from iop_edge.serve.dialect.errors import Dialect
from iop_edge.serve.dialect.request import MAX_MODEL_CHARS
from iop_edge.serve.http.request import Request
from iop_shared.errors import SHAPES, Code

PATH = "/openapi.json"

_SUMMARIES = {
    "chat": "Chat completions",
    "responses": "Responses",
    "messages": "Messages",
    "count_tokens": "Count the input tokens of a message",
    "submit_run": "",
}
_ERROR_SCHEMAS = {
    Dialect.OPENAI: {"$ref": "#/components/schemas/OpenAIError"},
    Dialect.ANTHROPIC: {"$ref": "#/components/schemas/AnthropicError"},
}
_TEXT: dict[str, Any] = {"type": "string"}
_OPTIONAL_TEXT: dict[str, Any] = {"type": ["string", "null"]}


async def describe(request: Request) -> None:
    """Answers `GET /openapi.json`. It holds nothing of a config, so it wants no token."""
    await request.respond(200, msgspec.json.encode(document()))


def document() -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, Any] = {
        protocol.path: {"post": _operation(protocol)} for protocol in CALLER_PROTOCOLS
    }
    paths["/v1/models"] = {"get": _models("List the models that may be named")}
    one = _models("Show one model; its id may hold slashes")
    one["parameters"].append({"name": "id", "in": "path", "required": True, "schema": _TEXT})
    paths["/v1/models/{id}"] = {"get": one}
    return {
        "openapi": "3.1.0",
        "info": {"title": "IOP ingress", "version": version("iop")},
        "security": [{"bearer": []}, {"api_key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "headers": {"x-request-id": {"schema": _TEXT}},
            "schemas": _schemas(),
        },
    }


def _operation(protocol: CallerProtocol) -> dict[str, Any]:
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if protocol.can_stream:
        answer["text/event-stream"] = {}
    return {
        "operationId": protocol.operation,
        "summary": _SUMMARIES[protocol.surface],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _body(protocol)}},
        },
        "responses": {"200": _response("The answer", answer), **_errors(protocol.dialect)},
    }


def _body(protocol: CallerProtocol) -> dict[str, Any]:
    fields = {
        name: {
            "description": field.wanted,
            **(field.schema if name in protocol.required else _or_null(field.schema)),
        }
        for name, field in protocol.fields.items()
    }
    return {
        "type": "object",
        "required": ["model", *protocol.required],
        "properties": {
            "model": {
                **_TEXT,
                "minLength": 1,
                "maxLength": MAX_MODEL_CHARS,
                "description": "an id of /v1/models",
            },
            **fields,
        },
        "additionalProperties": True,
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _models(summary: str) -> dict[str, Any]:
    answer = {"application/json": {"schema": {"type": "object"}}}
    version_header = {"name": "anthropic-version", "in": "header", "schema": _TEXT}
    return {
        "summary": summary,
        "parameters": [
            {**version_header, "description": "where it is sent, the answer has Anthropic's shape"}
        ],
        "responses": {"200": _response("The models", answer), **_errors(*Dialect)},
    }


def _errors(*dialects: Dialect) -> dict[str, Any]:
    """By status; in whichever of the dialects the caller speaks."""
    by_status: dict[int, list[Code]] = {}
    for code, shape in SHAPES.items():
        by_status.setdefault(shape.status, []).append(code)
    schemas = [_ERROR_SCHEMAS[dialect] for dialect in dialects]
    content = {"application/json": {"schema": {"anyOf": schemas} if schemas[1:] else schemas[0]}}
    return {
        str(status): _response(", ".join(codes), content)
        for status, codes in sorted(by_status.items())
    }


def _response(description: str, content: dict[str, Any]) -> dict[str, Any]:
    headers = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    return {"description": description, "headers": headers, "content": content}


def _schemas() -> dict[str, Any]:
    openai_types = sorted({shape.openai_type for shape in SHAPES.values()})
    anthropic_types = sorted({shape.anthropic_type for shape in SHAPES.values()})
    return {
        "OpenAIError": _object(
            error=_object(
                message=_TEXT,
                type={**_TEXT, "examples": openai_types},
                param=_OPTIONAL_TEXT,
                code={**_OPTIONAL_TEXT, "examples": list(Code)},
            )
        ),
        "AnthropicError": _object(
            type={"const": "error"},
            error=_object(type={**_TEXT, "examples": anthropic_types}, message=_TEXT),
            request_id=_TEXT,
        ),
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}
