from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from iop_edge.config.effective import (
    EffectiveConfig,
    HeaderValue,
    ModelGroup,
    OpenAI,
    SecretRef,
    Telemetry,
)
from iop_edge.config.reload_class import Reload
from iop_edge.config.view import REDACTED
from iop_edge.refresh.diff import Change, diff
from iop_edge.refresh.shape import effective_shape, rows

Touch = Callable[[EffectiveConfig, str], EffectiveConfig]

PATTERNS = sorted(row.pattern for row in rows(effective_shape()))


def changes_between(
    before: EffectiveConfig,
    after: EffectiveConfig,
    changed_secrets: frozenset[SecretRef] = frozenset(),
) -> tuple[Change, ...]:
    return diff(before, after, same_secret=lambda reference: reference not in changed_secrets)


def one_change(before: EffectiveConfig, after: EffectiveConfig) -> Change:
    (change,) = changes_between(before, after)
    return change


@pytest.mark.req("REF-2", "REF-12")
def test_a_change_names_path_class_and_both_values(lab: EffectiveConfig, touch: Touch) -> None:
    change = one_change(lab, touch(lab, "nodes[].providers[].capacity"))
    assert str(change.path) == "nodes[gpu-a].providers[p-a].capacity"
    assert (change.reload, change.old, change.new, change.reason) == (Reload.LIVE, 8, 9, None)


@pytest.mark.req("REF-2")
def test_changes_are_ordered_by_path(lab: EffectiveConfig, touch: Touch) -> None:
    changed = lab
    for pattern in ("server.listen", "nodes[].alias", "models[].display_name", "edge.name"):
        changed = touch(changed, pattern)
    paths = [str(change.path) for change in changes_between(lab, changed)]
    assert paths == [
        "edge.name",
        "models[smart].display_name",
        "nodes[gpu-a].alias",
        "server.listen",
    ]


@pytest.mark.req("REF-3", "REF-4")
def test_an_entry_that_comes_or_goes_is_one_change_of_its_collections_class(
    lab: EffectiveConfig,
) -> None:
    fewer = structs.replace(lab, nodes=lab.nodes[:1], models=lab.models[:1])
    gone = {str(change.path): change for change in changes_between(lab, fewer)}
    assert {path: change.reload for path, change in gone.items()} == {
        "models[other]": Reload.LIVE,
        "nodes[gpu-b]": Reload.RESTART,
    }
    assert all(change.new is None and change.old for change in gone.values())
    come = {str(change.path): change for change in changes_between(fewer, lab)}
    assert come.keys() == gone.keys()
    assert all(change.old is None and change.new for change in come.values())


@pytest.mark.req("REF-3", "REF-4")
def test_a_provider_that_goes_needs_a_restart_and_its_mapping_does_not(
    lab: EffectiveConfig,
) -> None:
    node = structs.replace(lab.nodes[0], providers=())
    model = structs.replace(lab.models[0], providers={"p-b": "small"})
    after = structs.replace(lab, nodes=(node, lab.nodes[1]), models=(model, lab.models[1]))
    assert {str(change.path): change.reload for change in changes_between(lab, after)} == {
        "models[smart].providers[p-a]": Reload.LIVE,
        "nodes[gpu-a].providers[p-a]": Reload.RESTART,
    }


@pytest.mark.req("REF-4")
def test_a_section_that_comes_whole_is_one_change(lab: EffectiveConfig) -> None:
    plain = structs.replace(lab, server=structs.replace(lab.server, tls=None))
    change = one_change(plain, lab)
    assert str(change.path) == "server.tls"
    assert change.old is None
    assert change.new["key_file"] == "/etc/iop/tls.key"
    assert change.reason == "The gRPC listener for nodes and SubmitRun is opened once, at start."


@pytest.mark.req("REF-4", "REF-12", "SEC-1")
def test_a_secret_that_changed_behind_its_reference_is_shown_without_values(
    lab: EffectiveConfig,
) -> None:
    changes = changes_between(lab, lab, frozenset({SecretRef(env="KEY")}))
    # Both adapters send it too, but only because their profile does.
    assert [str(change.path) for change in changes] == ["protocol_profiles[lab_vllm].auth.value"]
    (change,) = changes
    assert change.reload is Reload.RESTART
    assert (change.old, change.new) == (REDACTED, REDACTED)
    assert change.reason is not None
    assert "secret" in change.reason


@pytest.mark.req("REF-12", "SEC-1")
def test_another_reference_is_shown_and_a_digest_is_not(lab: EffectiveConfig) -> None:
    node = structs.replace(lab.nodes[0], token=SecretRef(sha256="f" * 64))
    change = one_change(lab, structs.replace(lab, nodes=(node, lab.nodes[1])))
    assert str(change.path) == "nodes[gpu-a].token"
    assert change.old == {"env": "TOKEN_GPU_A"}
    assert change.new == {"sha256": REDACTED}


@pytest.mark.req("SEC-1")
def test_urls_are_shown_without_userinfo_and_query(lab: EffectiveConfig) -> None:
    url = "http://user:canary@collector:4317/v1?key=canary"
    change = one_change(lab, structs.replace(lab, telemetry=Telemetry(otlp_endpoint=url)))
    assert change.new == "http://collector:4317/v1"


@pytest.mark.req("SEC-1")
def test_a_free_maps_value_under_a_secrets_name_is_hidden(lab: EffectiveConfig) -> None:
    before = lab.protocol_profiles["lab_vllm"]
    after = structs.replace(
        before, extensions={"api_key": "canary", "nested": {"api_key": "canary", "depth": [1, 2]}}
    )
    changes = changes_between(
        lab, structs.replace(lab, protocol_profiles={"lab_vllm": after, "other": after})
    )
    shown = {str(change.path): (change.old, change.new) for change in changes}
    at = "protocol_profiles[lab_vllm].extensions"
    assert shown[f"{at}[api_key]"] == (None, REDACTED)
    assert shown[f"{at}[flag]"] == (True, None)
    assert shown[f"{at}[nested]"] == ({"api_key": REDACTED}, {"api_key": REDACTED, "depth": [1, 2]})
    assert "canary" not in str(changes)


@pytest.mark.req("CFG-8")
def test_a_number_and_a_boolean_differ_in_a_free_map(lab: EffectiveConfig) -> None:
    profile = structs.replace(lab.protocol_profiles["lab_vllm"], extensions={"flag": 1})
    before = structs.replace(profile, extensions={"flag": True})
    change = one_change(
        structs.replace(lab, protocol_profiles={"lab_vllm": before}),
        structs.replace(lab, protocol_profiles={"lab_vllm": profile}),
    )
    assert (change.old, change.new) == (True, 1)


@pytest.mark.req("REF-4")
def test_a_header_that_turns_from_a_literal_into_a_reference_is_one_change(
    lab: EffectiveConfig,
) -> None:
    adapter = lab.nodes[0].adapters[0]
    headers = (HeaderValue(name="X-Team", value=SecretRef(node_env="TEAM")), adapter.headers[1])
    node = structs.replace(lab.nodes[0], adapters=(structs.replace(adapter, headers=headers),))
    change = one_change(lab, structs.replace(lab, nodes=(node, lab.nodes[1])))
    assert (change.old, change.new) == ("lab", {"node_env": "TEAM"})


def test_an_id_with_spaces_is_quoted_in_its_path(lab: EffectiveConfig) -> None:
    added = structs.replace(lab, models=(*lab.models, ModelGroup(id="my model", providers={})))
    assert str(one_change(lab, added).path) == 'models["my model"]'


@given(patterns=st.lists(st.sampled_from(PATTERNS), max_size=6))
@pytest.mark.req("REF-2", "REF-12")
def test_a_diff_back_is_the_diff_turned_around(
    lab: EffectiveConfig, touch: Touch, patterns: list[str]
) -> None:
    after = lab
    for pattern in patterns:
        after = touch(after, pattern)
    there = changes_between(lab, after)
    back = changes_between(after, lab)
    assert [(c.path, c.reload, c.old, c.new) for c in there] == [
        (c.path, c.reload, c.new, c.old) for c in back
    ]
    assert bool(there) == (after != lab)


@given(seed=st.integers(0, 2**32), patterns=st.lists(st.sampled_from(PATTERNS), max_size=3))
@pytest.mark.req("REF-2", "REF-8")
def test_another_order_is_no_change(
    lab: EffectiveConfig, touch: Touch, seed: int, patterns: list[str]
) -> None:
    config = lab
    for pattern in patterns:
        config = touch(config, pattern)
    assert changes_between(config, shuffled(config, random.Random(seed))) == ()


def shuffled(value: Any, order: random.Random) -> Any:
    """The same meaning in another order, at every depth."""
    match value:
        case Struct():
            return type(value)(
                **{name: shuffled(getattr(value, name), order) for name in value.__struct_fields__}
            )
        case tuple():
            return tuple(order.sample([shuffled(one, order) for one in value], len(value)))
        case dict():
            keys = order.sample(sorted(value), len(value))
            return {key: shuffled(value[key], order) for key in keys}
        case _:
            return value


@pytest.mark.req("REF-4")
def test_openai_is_compared_to_its_depths(lab: EffectiveConfig) -> None:
    bare = structs.replace(lab, openai=OpenAI())
    changes = changes_between(lab, bare)
    assert {change.reload for change in changes} == {Reload.RESTART}
    assert [str(change.path) for change in changes] == [
        "openai.adapter",
        "openai.enabled",
        "openai.model_routes[legacy]",
        "openai.node",
        "openai.principal_tokens[ci]",
        "openai.provider_id",
        "openai.stream_evidence_gate.filters[repeat_guard]",
        "openai.target",
        "openai.tls",
    ]
