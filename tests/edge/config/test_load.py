"""The whole way of a candidate: order, digest, partial entries, and what the decoder decides."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_edge.config.document import (
    ModelDocument,
    NodeDocument,
    OpenAIDocument,
    ProfileDocument,
    ProviderDocument,
)
from iop_edge.config.likely import Likely
from iop_edge.config.problems import ConfigInvalid
from iop_edge.config.reading.decode import Decoder
from iop_edge.config.report import Report
from iop_edge.config.yaml12.places import Places
from tests.edge.config.rig import NODE, codes, filled, loaded, problems, sources


@pytest.mark.req("CFG-16")
def test_the_missing_fallback_attribution_is_listed_after_everything_else() -> None:
    text = """
    openai:
      enabled: true
      model_routes: [{id: r, model: x, adapter: zz, target: t}]
    models: [{id: smart, providers: {p9: m}}]
    nodes:
      - id: n1
        token: $TOKEN
        adapters: [$ADAPTER]
        providers: [{$P1, adapter: zz}]
    """
    assert codes(text) == [
        "unknown_adapter",
        "unknown_provider",
        "unknown_adapter",
        "provider_id_required",
    ]


@pytest.mark.req("CFG-4")
def test_problems_come_in_the_order_of_the_file_and_warnings_after_them() -> None:
    text = "console: {enabled: true}\nedge: {b: 1, a: 2}\nserver: {c: 1}\n"
    found = [(one.line, one.column, one.severity) for one in problems(text)]
    assert found == [(2, 8, "error"), (2, 14, "error"), (3, 10, "error"), (1, 20, "warning")]


@pytest.mark.req("CFG-4")
def test_an_entry_with_problems_is_still_judged_for_everything_else() -> None:
    text = NODE + (
        "      - {id: p1, type: vlm, category: api, capacity: 0, models: [m], adapter: zz, x: 1,\n"
        "         profile: nowhere, health: 5}\n"
        "models: [{id: smart, providers: {p1: other}, default_max_tokens: 1, min_max_tokens: 2}]\n"
    )
    assert codes(text) == [
        "not_one_of",
        "out_of_range",
        "unknown_adapter",
        "unknown_key",
        "unknown_profile",
        "quote_it",
        "unknown_served_model",
        "policy_contradiction",
    ]


@pytest.mark.req("CFG-4")
def test_what_is_told_of_an_entry_that_is_none_is_that_alone() -> None:
    text = "nodes: [5, {id: n, token: $TOKEN, adapters: [x], providers: [null, [], {}]}]"
    assert codes(text) == ["not_a_mapping"] * 4 + ["missing_key"] * 5


@pytest.mark.req("REF-10")
def test_the_digest_of_one_file_is_that_of_its_bytes() -> None:
    text = b"edge: {id: e}\n"
    assert loaded(text).digest == f"sha256:{sha256(text).hexdigest()}"


@pytest.mark.req("REF-10")
def test_the_digest_of_several_files_follows_each_of_them_and_their_order() -> None:
    candidates = [
        (b"edge: {}\n", b"server: {}\n"),
        (b"server: {}\n", b"edge: {}\n"),
        (b"edge: {}\nserver: {}\n", b"{}"),
        (b"edge: {}\n", b"server: {}"),
        (b"edge: {}\nserver: {}\n",),
    ]
    assert len({loaded(*files).digest for files in candidates}) == len(candidates)


@pytest.mark.req("CFG-3")
def test_the_likely_name_is_sought_for_a_bounded_number_of_names_only() -> None:
    text = "".join(f"servr{number}: 1\n" for number in range(3000))
    with pytest.raises(ConfigInvalid) as raised:
        loaded(text)
    assert raised.value.omitted == 2950
    assert all("`server`" in one.message for one in raised.value.problems)


@pytest.mark.req("CFG-3")
def test_the_likely_name_is_found_among_ten_thousand() -> None:
    known = {f"gpu-{number:05}" for number in range(10_000)} | {"gpu-abcde"}
    assert Likely().nearest("gpu-abcdf", known) == "gpu-abcde"
    assert Likely().nearest("nothing-like-it", known) is None


@pytest.mark.req("CFG-4")
def test_a_message_cannot_steer_a_terminal() -> None:
    [found] = problems('edge: {"\\e[2Jx": 1}')
    assert found.message.isprintable()
    assert found.path.isprintable()


VALID = {
    ProviderDocument: {
        "id": "p", "type": "vllm", "category": "api", "models": ["m"], "capacity": 1,
        "headers": {"X-A": "b", "X-Key": {"env": "K"}}, "lifecycle_capabilities": ["load"],
    },
    ModelDocument: {"id": "m", "providers": {"p": "m"}, "chars_per_token": 3.5},
    ProfileDocument: {
        "base": "vllm", "operations": {"models": "/m"}, "capabilities": ["chat"],
        "auth": {"header": "A", "value": {"node_env": "K"}}, "extensions": {"a": [1]},
    },
    OpenAIDocument: {
        "enabled": True, "limits": {"max_connections": 5},
        "model_routes": [{"id": "r", "model": "m", "adapter": "a", "target": "t"}],
        "stream_evidence_gate": {"filters": [{"filter": "repeat_guard", "selectors": [{}]}]},
    },
    NodeDocument: {
        "id": "n", "token": {"env": "T"}, "runtime": {"concurrency": 1},
        "adapters": [{"key": "a", "type": "ollama", "probe": {"path": "/h"}}],
    },
}  # fmt: skip
STRANGE = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["", " ", "a b", "x" * 2000, "a\nb", "\x00", "é", "12"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.none(),
)


@pytest.mark.req("CFG-3", "CFG-4")
@settings(deadline=None)
@given(data=st.data(), cls=st.sampled_from(list(VALID)))
def test_the_words_and_the_decoder_agree_on_what_is_valid(
    data: st.DataObject, cls: type[msgspec.Struct]
) -> None:
    """Something is told exactly where the decoder refuses, and nothing where it does not."""
    import copy

    value = copy.deepcopy(VALID[cls])

    def spoil(node: object) -> None:
        entries = list(node.items() if isinstance(node, dict) else enumerate(node))
        if not entries:
            return
        key, inner = data.draw(st.sampled_from(entries))
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            spoil(inner)
        else:
            node[key] = data.draw(STRANGE)

    spoil(value)
    report = Report(Places())
    report.root = value
    Decoder(report, Likely()).pieces(value, cls, ())
    try:
        msgspec.convert(value, cls)
    except msgspec.ValidationError:
        is_valid = False
    else:
        is_valid = True
    assert report.has_errors is not is_valid


@pytest.mark.req("CFG-3", "CFG-4")
def test_of_very_many_problems_of_the_text_the_rest_is_counted() -> None:
    with pytest.raises(ConfigInvalid) as raised:
        loaded("edge: {" + "id: e, " * 20_000 + "}")
    assert [one.code for one in raised.value.problems] == ["duplicate_key"] * 50
    assert raised.value.omitted == 19_999 - 50


@pytest.mark.req("CFG-3")
def test_a_config_of_many_problems_costs_no_more_than_its_size() -> None:
    text = filled(NODE) + "      - {id: p, capcity: 1}\n" * 2000
    with pytest.raises(ConfigInvalid) as raised:
        loaded(text)
    assert len(raised.value.problems) == 50
    assert raised.value.omitted > 9_000
    assert sources(text).digest()
