"""A file means the same when only its looks change, and no bytes end in a traceback."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iop_edge.config.load import Sources, load
from iop_edge.config.problems import ConfigInvalid
from iop_edge.config.view import view
from iop_edge.config.yaml12.emit import emit, scalar
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.tree import build
from iop_edge.refresh.diff import diff
from tests.edge.config.rig import filled, problems, sources

names = st.text("abcxyz0123./:-_ é한", min_size=1, max_size=6).map(lambda one: f"n{one}n")
small = st.integers(1, 9)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid document, as a tree."""
    number = draw(st.integers(0, 3))
    ids = draw(st.lists(names, min_size=number, max_size=number, unique_by=str.casefold))
    nodes = []
    providers: list[tuple[str, str]] = []
    for position, node_id in enumerate(ids):
        served = draw(st.lists(names, min_size=1, max_size=3, unique=True))
        entries = []
        for place in range(draw(st.integers(0, 2))):
            provider_id = f"p{position}{place}"
            entry: dict[str, Any] = {
                "id": provider_id,
                "type": draw(st.sampled_from(["vllm", "openai_compat", "seulgivibe_claude"])),
                "category": draw(st.sampled_from(["api", "local_inference"])),
                "models": served,
                "capacity": draw(small),
                "base_url": f"http://h{position}:80{place}0/v1",
            }
            for key, values in {
                "long_context_capacity": st.integers(0, 3),
                "priority": small,
                "enabled": st.booleans(),
                "health": st.sampled_from(["healthy", "unknown"]),
                "headers": st.just({"X-Team": draw(names), "X-Key": {"node_env": "K"}}),
                "request_timeout_ms": small,
            }.items():
                if draw(st.booleans()):
                    entry[key] = draw(values)
            entries.append(entry)
            providers.append((provider_id, served[0]))
        node: dict[str, Any] = {"id": node_id, "token": {"sha256": f"{position:064x}"}}
        if entries:
            node["providers"] = entries
        if draw(st.booleans()):
            node["runtime"] = {"concurrency": draw(small)}
        nodes.append(node)
    models = []
    for position, name in enumerate(draw(st.lists(names, max_size=2, unique_by=str.casefold))):
        model: dict[str, Any] = {"id": f"m{position}{name}", "providers": dict(providers)}
        if draw(st.booleans()):
            model["context_window_tokens"] = draw(small)
        models.append(model)
    document: dict[str, Any] = {"nodes": nodes, "models": models}
    if draw(st.booleans()):
        document["provider_pool"] = {"max_queue": draw(small)}
    if draw(st.booleans()):
        document["edge"] = {"id": draw(names), "name": draw(names)}
    return document


def proved(*texts: str) -> Any:
    return load(sources(*(text.encode() for text in texts)))


def same(one: Any, other: Any) -> bool:
    return diff(one.config, other.config, lambda _: True) == ()


def shuffled(value: Any, chance: random.Random) -> Any:
    """Every mapping's keys, and every list of named entries, in another order."""
    if isinstance(value, dict):
        entries = [(key, shuffled(inner, chance)) for key, inner in value.items()]
        chance.shuffle(entries)
        return dict(entries)
    if isinstance(value, list):
        entries = [shuffled(inner, chance) for inner in value]
        if all(isinstance(one, dict) for one in entries):
            chance.shuffle(entries)
        return entries
    return value


def flow(value: Any, chance: random.Random) -> str:
    """Everything between braces, on lines broken anywhere, with comments."""
    gap = chance.choice([" ", "\n ", " # a comment: {\n "])
    match value:
        case dict():
            inner = f",{gap}".join(
                f"{scalar(key)}: {flow(one, chance)}" for key, one in value.items()
            )
            return f"{{{gap}{inner}{gap}}}"
        case list():
            return f"[{gap}{f',{gap}'.join(flow(one, chance) for one in value)}{gap}]"
        case _:
            return scalar(value)


@pytest.mark.req("CFG-1", "CFG-23")
@settings(deadline=None)
@given(documents(), st.randoms(use_true_random=False))
def test_order_comments_and_style_change_no_meaning(
    document: dict[str, Any], chance: random.Random
) -> None:
    plain = proved(emit(document))
    assert proved("# first\n" + flow(document, chance)).config == plain.config
    assert (
        proved("---\n" + emit(document).replace("\n", " # why\n") + "...\n").config == plain.config
    )
    assert proved(emit(document).replace("\n", "\r\n")).config == plain.config
    assert same(proved(emit(shuffled(document, chance))), plain)


@pytest.mark.req("CFG-1", "CFG-23")
@settings(deadline=None)
@given(documents())
def test_writing_the_defaults_out_changes_no_meaning(document: dict[str, Any]) -> None:
    plain = proved(emit(document))
    again = proved(emit(view(plain.config)))
    assert same(again, plain)
    assert view(again.config) == view(plain.config)


@pytest.mark.req("CFG-2")
@settings(deadline=None)
@given(documents(), st.randoms(use_true_random=False))
def test_splitting_a_file_changes_no_meaning(
    document: dict[str, Any], chance: random.Random
) -> None:
    def split(value: Any) -> tuple[Any, Any]:
        one: dict[str, Any] = {}
        other: dict[str, Any] = {}
        for key, inner in value.items():
            is_open = isinstance(inner, dict) and key not in ("token", "headers")
            if is_open and chance.random() < 0.5:
                one[key], other[key] = split(inner)
            elif isinstance(inner, list) and all(isinstance(entry, dict) for entry in inner):
                halves = [(entry["id"], *split(entry)) for entry in inner]
                one[key] = [{"id": name} | half for name, half, _ in halves]
                other[key] = [{"id": name} | half for name, _, half in halves]
            else:
                chance.choice((one, other))[key] = inner
        return one, other

    one, other = split(document)
    assert same(proved(emit(one), emit(other)), proved(emit(document)))
    assert same(proved(emit(document), emit(document)), proved(emit(document)))


SEEDS = [
    filled(text).encode()
    for text in (
        "nodes: [{id: n1, token: $TOKEN, adapters: [$ADAPTER], providers: [{$P1, adapter: a1}]}]",
        "edge: &a {id: e}\nserver: {tls: *a}\nmodels:\n  - id: ${X:-m}\n    providers: {p1: m}\n",
        "openai: {enabled: true, stream_evidence_gate: {filters: [{filter: repeat_guard}]}}",
        "protocol_profiles: {x: {base: y, auth: {value: {env: K}}}, y: {base: x}}\n? [a]\n: b\n",
        "nodes:\n- id: n\n  adapters: {ollama: {base_url: http://h}, cli: {}}\n  token: |\n    x\n",
    )
]


DAMAGE = [
    *(one.encode() for one in "{}[]:-?!&*|>'\"#,é"),
    *(b"<<", b"null", b"1e400", b"token", b"env"),
    *(b"", b": ", b"- ", b"&a ", b"*a", b"!t ", b"|\n", b"\n", b"\t", b"${X}", b"${", b"? "),
    *(b"\xff", b"\x00", b"---\n", b"\\u", b", "),
]


def judged(content: bytes) -> None:
    candidate: Sources = sources(content, environment={"X": "x"})
    for skip_secrets in (False, True):
        try:
            load(candidate, skip_secrets=skip_secrets)
        except ConfigInvalid as invalid:
            found = invalid.problems
        else:
            continue
        assert found
        assert all(one.message and one.code for one in found)


@pytest.mark.req("CFG-3")
@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_at_all_end_in_a_config_or_in_problems(content: bytes) -> None:
    judged(content)


@pytest.mark.req("CFG-3")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(SEEDS),
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(0, 6),
            st.sampled_from(DAMAGE),
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_a_config_that_was_damaged_ends_in_a_config_or_in_problems(
    seed: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    content = seed
    for position, length, inserted in edits:
        position %= len(content) + 1
        content = content[:position] + inserted + content[position + length :]
    judged(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab$", max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["nodes", "id", "token", "adapters", "providers", "models", "openai", "edge", "key",
             "type", "headers", "auth", "base", "env", "protocol_profiles", "ollama", "filters"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@pytest.mark.req("CFG-3", "CFG-4")
@settings(deadline=None)
@given(st.lists(json_values.filter(lambda one: isinstance(one, dict)), min_size=1, max_size=2))
def test_known_keys_in_wrong_places_end_in_a_config_or_in_problems(values: list[Any]) -> None:
    texts = [emit(value) for value in values]
    found = problems(*(text.encode() for text in texts))
    assert all(one.line > 0 and one.column > 0 for one in found)


@pytest.mark.req("CFG-23")
@settings(deadline=None)
@given(json_values.filter(lambda one: isinstance(one, dict)))
def test_what_is_emitted_is_read_back(value: Any) -> None:
    places = Places()
    text = emit(value)
    tree = build(text, places.add_file("f", text), places)
    assert tree.root == value
