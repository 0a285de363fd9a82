"""What may be shown of a line (CFG-4, SEC-1)."""

from __future__ import annotations

import pytest

from iop_edge.config.excerpt import MASK, MAX_WIDTH, Excerpts
from iop_edge.config.problems import Problem
from iop_edge.config.sources import SourceFile
from tests.edge.config.rig import marked

SECRET = "canary"


def shown(text: str) -> tuple[str, str]:
    """The excerpt of the marked place, and what the caret stands under."""
    text, [(line, column)] = marked(text)
    problem = Problem(code="c", path="", file="f", line=line, column=column, message="m")
    excerpt = Excerpts([SourceFile("f", text.encode())]).of(problem)
    assert excerpt is not None
    return excerpt.text, excerpt.text[excerpt.caret :]


@pytest.mark.req("CFG-4")
@pytest.mark.parametrize(
    ("text", "line", "under"),
    [
        ("edge: {id: «e1, name: Lab}", "edge: {id: e1, name: Lab}", "e1"),
        ("provider_pool: {max_queue: «0}", "provider_pool: {max_queue: 0}", "0"),
        ("edge:\n  «capcity: 4", "  capcity: 4", "capcity"),
        ("models:\n  - providers: {«p1: m}", "  - providers: {p1: m}", "p1"),
        ("models: [{id: smart, display_name: «한국어 이름}]",
         "models: [{id: smart, display_name: 한국어 이름}]", "한국어"),
        ("nodes: [{adapters: {ollama: {base_url: «'http://h'}}}]",
         "nodes: [{adapters: {ollama: {base_url: 'http://h'}}}]", "'http"),
        ("protocol_profiles: {x: {model_mapping: {a: «b}, extensions: {c: {d: e}}}}",
         "protocol_profiles: {x: {model_mapping: {a: b}, extensions: {c: {d: e}}}}", "b}"),
    ],
)  # fmt: skip
def test_what_the_config_knows_is_shown_with_the_caret_below(
    text: str, line: str, under: str
) -> None:
    found, rest = shown(text)
    assert found == line
    assert rest.startswith(under)


SECRET_LINES = [
    "nodes: [{id: n, token: «canary}]",
    "nodes: [{id: n, «token: canary, alias: x}]",
    "nodes: [{id: n, token: {«evn: canary}}]",
    "nodes: [{id: n, token: {«canary: x}}]",
    "nodes: [{id: n, token: {env: «canary}}]",
    "nodes: [{id: n, «tokne: canary}]",
    "nodes:\n  - id: n\n    token: |\n      «canary\n",
    "nodes:\n  - id: n\n    token: 'a\n      «canary'\n",
    "nodes: [{adapters: [{key: a, headers: {X-Api-Key: «canary}}]}]",
    "nodes: [{adapters: {ollama: {headers: {authorization: «Bearer canary}}}}]",
    "protocol_profiles: {x: {auth: {value: «canary}}}",
    "protocol_profiles: {x: {auth: «canary}}",
    "protocol_profiles: {x: {extensions: {api_key: «canary}}}",
    "openai: {principal_tokens: [{token_ref: a, token_hash_sha256: «canary}]}",
    "openai: {principal_tokens: [{token_ref: a, «token: canary}]}",
    "nodes: [{adapters: [{key: a, base_url: «'http://user:canary@h/x'}]}]",
    "nodes: [{adapters: [{key: a, base_url: «'http://h/x?key=canary'}]}]",
    "nodes: [{adapters: [{key: a, base_url: «'http://h/x#canary'}]}]",
    "nodes: [{adapters: [{key: a, base_url: «'http://user:can/canary@h/x'}]}]",
    "nodes: [{adapters: [{key: a, base_url: «'http://user:?canary@h/x'}]}]",
    "nodes: [{adapters: [{key: a, base_url: «'user:canary@h:80'}]}]",
    "nodes: [{providers: [{id: p, endpoint: «http:/user:canary@h}]}]",
    "protocol_profiles: {x: {operations: {models: «'user:canary@h/models'}}}",
    "server: {listen: «'user:canary@h:1'}",
    "nodes: [{adapters: [{key: a, «api_key: canary}]}]",
    "nodes: [{providers: [{id: p, «env: {KEY: canary}}]}]",
    "nodes: [{providers: [{id: p, «args: [--key, canary]}]}]",
    "edge: {id: [«canary]}",
    "edge: {id: {x: «canary}}",
    "models: «canary",
    "edge: {«id: e} # the old token was canary",
    "«canary",
    "- «canary",
    "edge: [«canary",
    "nodes:\n  - id: n\n«\ttoken: canary\n",
    "nodes:\n  - {id: n, token: canary: «x}\n",
    'edge: {id: "«canary\n',
    "edge: {id: e}\n--- «canary\n",
    "? «[canary]\n: x",
    "edge: «&canary {id: e}",
    "edge: {id: «*canary}",
    "edge: {id: «!canary x}",
]


@pytest.mark.req("CFG-4", "SEC-1")
@pytest.mark.parametrize("text", SECRET_LINES)
def test_what_may_be_a_secret_is_masked(text: str) -> None:
    found, _ = shown(text)
    assert SECRET not in found


@pytest.mark.req("CFG-4")
def test_a_mask_moves_the_caret_along() -> None:
    found, rest = shown("nodes: [{token: 'a long canary', «alais: x}]")
    assert found == f"nodes: [{{token: {MASK}, alais: {MASK}}}]"
    assert rest.startswith("alais")


@pytest.mark.req("CFG-4")
def test_in_a_text_that_is_no_yaml_known_keys_are_shown_and_nothing_else() -> None:
    assert shown("edge:\n«\tname: canary\n")[0].strip() == f"name: {MASK}"


@pytest.mark.req("CFG-4")
def test_a_long_line_is_cut_around_the_caret() -> None:
    many = ", ".join(["{id: m}"] * 99)
    found, rest = shown(f"models: [{many}, {{id: «here}}, {many}]")
    assert len(found) <= MAX_WIDTH + 2
    assert rest.startswith("here")


@pytest.mark.req("CFG-4")
def test_control_characters_do_not_reach_a_terminal() -> None:
    problem = Problem(code="c", path="", file="f", line=1, column=1, message="m")
    excerpt = Excerpts([SourceFile("f", "edge: {id: a\u202eb\x85c}".encode())]).of(problem)
    assert excerpt is not None
    assert excerpt.text.isprintable()


@pytest.mark.req("CFG-4")
@pytest.mark.parametrize("content", [b"\xff", "edge".encode("utf-16")])
def test_of_bytes_that_are_no_text_nothing_is_shown(content: bytes) -> None:
    problem = Problem(code="c", path="", file="f", line=1, column=1, message="m")
    assert Excerpts([SourceFile("f", content)]).of(problem) is None
