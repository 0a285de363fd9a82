"""Resolved data is no change of its own, and everything that was written shows at least once.

The configs here are loaded from documents, as only those can tell what was written.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.config.effective import EffectiveConfig, SecretRef
from iop_edge.config.load import ConfigInvalid, load
from iop_edge.config.reload_class import Reload
from iop_edge.config.sources import SecretFile, SourceFile, Sources
from iop_edge.refresh.diff import Change, diff

Document = dict[str, Any]

LAB: Document = {
    "protocol_profiles": {
        "lab": {
            "base": "vllm",
            "base_url": "http://127.0.0.1:8000",
            "auth": {"header": "X-Key", "scheme": "Key", "value": {"file": "/run/secrets/one"}},
        }
    },
    "models": [{"id": "smart", "providers": {"p": "served"}}],
    "nodes": [
        {
            "id": "gpu-a",
            "token": {"sha256": "a" * 64},
            "adapters": [{"key": "main", "type": "openai_compat"}],
            "providers": [
                {
                    "id": "p",
                    "type": "vllm",
                    "category": "local_inference",
                    "adapter": "main",
                    "profile": "lab",
                    "models": ["served"],
                    "capacity": 4,
                }
            ],
        }
    ],
}


def effective(document: Document) -> EffectiveConfig:
    content = json.dumps(document).encode()
    sources = Sources(
        files=(SourceFile(name="edge.yaml", content=content),),
        environment={},
        read_secret=lambda path: SecretFile(path.encode(), 0o600),
        fingerprint_key=b"one key",
    )
    return load(sources).config


def changes_between(
    before: EffectiveConfig,
    after: EffectiveConfig,
    changed_secrets: frozenset[SecretRef] = frozenset(),
) -> tuple[Change, ...]:
    return diff(before, after, same_secret=lambda reference: reference not in changed_secrets)


def paths(before: Document, after: Document) -> list[str]:
    changes = changes_between(effective(before), effective(after))
    return [str(change.path) for change in changes]


def edited(
    *,
    profile: Document | None = None,
    adapter: Document | None = None,
    provider: Document | None = None,
) -> Document:
    """The lab with fields of its profile, its adapter or its provider replaced."""
    document = copy.deepcopy(LAB)
    node = document["nodes"][0]
    places = (
        (document["protocol_profiles"]["lab"], profile),
        (node["adapters"][0], adapter),
        (node["providers"][0], provider),
    )
    for place, fields in places:
        place.update(fields or {})
    return document


OTHER_URL = "http://127.0.0.1:9000"
OTHER_KEY = {"header": "X-Key", "scheme": "Key", "value": {"file": "/run/secrets/two"}}


@pytest.mark.req("REF-12", "CFG-26")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            edited(adapter={"base_url": OTHER_URL}),
            edited(adapter={"base_url": f"{OTHER_URL}/v1"}),
            ["nodes[gpu-a].adapters[main].base_url"],
        ),
        (
            edited(),
            edited(profile={"base_url": OTHER_URL}),
            ["protocol_profiles[lab].base_url"],
        ),
        (
            edited(),
            edited(adapter={"base_url": OTHER_URL}),
            ["nodes[gpu-a].adapters[main].base_url"],
        ),
        (
            edited(),
            edited(profile={"auth": OTHER_KEY}),
            ["protocol_profiles[lab].auth.value"],
        ),
        (
            edited(),
            edited(adapter={"headers": {"X-Key": {"file": "/run/secrets/two"}}}),
            [
                "nodes[gpu-a].adapters[main].headers[X-Key].scheme",
                "nodes[gpu-a].adapters[main].headers[X-Key].value",
            ],
        ),
        (
            edited(),
            edited(profile={"capabilities": ["chat", "streaming"]}),
            ["protocol_profiles[lab].capabilities"],
        ),
        (
            edited(adapter={"base_url": OTHER_URL}),
            edited(adapter={"base_url": OTHER_URL}, provider={"profile": "vllm"}),
            ["nodes[gpu-a].providers[p].profile"],
        ),
        (
            edited(adapter={"base_url": OTHER_URL}, provider={"profile": "vllm"}),
            edited(
                adapter={"base_url": OTHER_URL}, provider={"profile": "sglang", "type": "sglang"}
            ),
            ["nodes[gpu-a].providers[p].type"],
        ),
    ],
)
def test_a_change_is_told_where_it_was_written_and_nowhere_else(
    before: Document, after: Document, expected: list[str]
) -> None:
    assert paths(before, after) == expected
    assert paths(after, before) == expected


@pytest.mark.req("REF-12")
def test_an_adapter_that_comes_is_shown_without_what_its_profile_makes_of_it() -> None:
    more = copy.deepcopy(LAB)
    more["nodes"][0]["adapters"].append(
        {"key": "spare", "type": "openai_compat", "base_url": OTHER_URL}
    )
    (change,) = changes_between(effective(LAB), effective(more))
    assert str(change.path) == "nodes[gpu-a].adapters[spare]"
    assert change.new["base_url"] == OTHER_URL
    assert "profile" not in change.new


# --- whatever is written shows ----------------------------------------------------------------

URLS = st.sampled_from(["http://127.0.0.1:8000", OTHER_URL, f"{OTHER_URL}/v1", None])
KEYS = st.sampled_from([{"file": "/run/secrets/one"}, {"file": "/run/secrets/two"}, None])

CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "base": st.sampled_from(["vllm", "sglang"]),
    "profile_url": URLS,
    "auth": st.fixed_dictionaries(
        {
            "header": st.sampled_from(["X-Key", "x-key"]),
            "scheme": st.sampled_from(["", "Key"]),
            "value": KEYS,
        }
    ),
    "operations": st.sampled_from([{}, {"models": "/models"}]),
    "model_mapping": st.sampled_from([{}, {"smart": "served"}]),
    "extensions": st.sampled_from([{}, {"flag": 1}, {"flag": 2}]),
    "heir_url": URLS,
    "adapter_url": URLS,
    "headers": st.dictionaries(st.sampled_from(["X-Key", "x-key"]), KEYS, max_size=1),
    "type": st.sampled_from(["vllm", "sglang", "seulgivibe_openai"]),
    "profile": st.sampled_from(["lab", "heir", "vllm", "sglang", None]),
    "label": st.sampled_from(["label", "seulgivibe_openai", None]),
    "enabled": st.booleans(),
    "is_provider_first": st.booleans(),
}
"""Everything that an adapter is resolved from, each with values that coincide with others."""


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Document, Document]:
    """Two documents that differ in a few of the choices."""
    before = {name: draw(choice) for name, choice in CHOICES.items()}
    moved = draw(st.sets(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=3))
    return document(before), document(before | {name: draw(CHOICES[name]) for name in moved})


def document(choices: dict[str, Any]) -> Document:
    made = edited(
        profile={
            "base": choices["base"],
            "base_url": choices["profile_url"],
            "auth": choices["auth"],
            "operations": choices["operations"],
            "model_mapping": choices["model_mapping"],
            "extensions": choices["extensions"],
        },
        adapter={"base_url": choices["adapter_url"], "headers": choices["headers"]},
        provider={
            "type": choices["type"],
            "profile": choices["profile"],
            "provider": choices["label"],
            "enabled": choices["enabled"],
        },
    )
    made["protocol_profiles"]["heir"] = {"base": "lab", "base_url": choices["heir_url"]}
    if choices["is_provider_first"]:
        provider = made["nodes"][0]["providers"][0]
        del provider["adapter"]
        provider |= {"base_url": choices["adapter_url"], "headers": choices["headers"]}
    return made


def loaded(document: Document) -> EffectiveConfig | None:
    try:
        return effective(document)
    except ConfigInvalid:
        return None


@given(pair=pairs(), is_secret_changed=st.booleans())
@pytest.mark.req("REF-4", "REF-12", "CFG-23")
def test_whatever_changes_the_effective_config_shows_in_the_class_it_has(
    pair: tuple[Document, Document], is_secret_changed: bool
) -> None:
    old, new = map(loaded, pair)
    if old is None or new is None:
        return
    secret = SecretRef(file="/run/secrets/two")
    changes = changes_between(old, new, frozenset({secret} if is_secret_changed else ()))
    assert changes or old == new
    is_at_both = secret in references(old) and secret in references(new)
    assert changes or not (is_secret_changed and is_at_both)
    # Everything about an adapter needs a restart, also what is told at its source alone.
    if old.nodes[0].adapters != new.nodes[0].adapters:
        assert Reload.RESTART in {change.reload for change in changes}


def references(config: EffectiveConfig) -> set[SecretRef]:
    sent = [header.value for one in config.nodes[0].adapters for header in one.headers]
    lent = [profile.auth.value for profile in config.protocol_profiles.values()]
    return {value for value in (*sent, *lent) if isinstance(value, SecretRef)}
