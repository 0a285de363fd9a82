import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import Raw

from iop_edge.config.effective import OpenAI
from iop_edge.serve.dialect.caller_protocols import CALLER_PROTOCOLS, CallerProtocol
from iop_edge.serve.openai.description import document
from iop_edge.serve.openai.ingress import Ingress
from iop_shared.errors import SHAPES
from tests.edge.serve.openai.conftest import Edge, ScriptedRuns
from tests.edge.serve.openai.test_ingress import SECURED, ask


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if "$ref" in value else set()
        return found.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return set()


@pytest.mark.req("OAI-1")
def test_every_route_is_described_and_no_other() -> None:
    nothing: Any = None
    routes = Ingress(OpenAI(), snapshots=nothing, runs=ScriptedRuns()).routes()
    served = {(route.method.lower(), route.path.replace("{tail}", "{id}")) for route in routes}
    described = {(method, path) for path, item in document()["paths"].items() for method in item}
    assert described == served - {("get", "/openapi.json")}


@pytest.mark.req("OAI-5")
def test_every_code_stands_at_its_status_in_every_operation() -> None:
    for path, item in document()["paths"].items():
        for operation in item.values():
            for code, shape in SHAPES.items():
                response = operation["responses"][str(shape.status)]
                assert code.value in response["description"].split(", ")
                schema = response["content"]["application/json"]["schema"]
                shapes = {name.rpartition("/")[2] for name in references(schema)}
                if path.startswith("/v1/models"):
                    assert shapes == {"AnthropicError", "OpenAIError"}
                else:
                    is_anthropic = path.startswith("/v1/messages")
                    assert shapes == {"AnthropicError" if is_anthropic else "OpenAIError"}


_TYPES: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """As much of JSON Schema as the fields of the ingress use."""
    kinds = schema["type"] if isinstance(schema["type"], list | tuple) else [schema["type"]]
    if not any(_TYPES[kind](value) for kind in kinds):
        return False
    if isinstance(value, list):
        items = schema.get("items")
        return len(value) >= schema.get("minItems", 0) and all(
            items is None or fits(each, items) for each in value
        )
    if isinstance(value, int | float):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


@pytest.mark.parametrize("protocol", CALLER_PROTOCOLS, ids=lambda protocol: protocol.surface)
@pytest.mark.parametrize(
    "value", [-2, -1, 0, 1, 128, 129, 1001, 2**31, 1.5, -0.5, True, "", "x", [], [{}], ["x"], {}]
)
def test_a_fields_description_says_what_is_accepted(protocol: CallerProtocol, value: Any) -> None:
    raw = Raw(json.dumps(value).encode())
    for name, field in protocol.fields.items():
        assert field.accepts(raw) == fits(value, field.schema), name


def test_every_reference_leads_somewhere() -> None:
    whole = document()
    for reference in references(whole):
        place: Any = whole
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert place


async def test_the_description_is_served_without_a_token(edge: Edge) -> None:
    await edge.serve(openai=SECURED)
    answer = await ask(edge, path="/openapi.json", method="GET")
    assert answer.status == 200
    assert json.loads(answer.body)["openapi"] == "3.1.0"
