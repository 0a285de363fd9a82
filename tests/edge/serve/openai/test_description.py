import json
from typing import Any

import pytest

from iop_edge.config.effective import OpenAI
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
                schema = response["content"]["application/json"]["schema"]["$ref"]
                is_anthropic = path.startswith("/v1/messages")
                assert schema.endswith("AnthropicError" if is_anthropic else "OpenAIError")


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
