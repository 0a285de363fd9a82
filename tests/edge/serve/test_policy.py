import hashlib

import msgspec
import pytest
from msgspec import Raw

from iop_edge.config.effective import ModelGroup, PrincipalToken, ProviderAuth
from iop_edge.serve.dialect.caller_protocols import (
    CALLER_PROTOCOLS,
    CHAT,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
    CallerProtocol,
)
from iop_edge.serve.policy import (
    Principals,
    apply_generation_policy,
    asked_tokens,
    bearer_token,
    provider_credential,
    traceparent_of,
)
from iop_shared.errors import Code, Fault

TOKEN = "iop_caller_1234abcd_grüße-世界"
HASH = hashlib.sha256(TOKEN.encode("utf-8")).hexdigest()


def token(ref: str, digest: str, principal: str = "team") -> PrincipalToken:
    return PrincipalToken(token_ref=ref, token_hash_sha256=digest, principal_ref=principal)


PRINCIPALS = Principals([token("ci", HASH), token("other", "0" * 64, "team-b")])


@pytest.mark.req("OAI-3", "CFG-17")
def test_a_token_is_found_by_the_digest_of_its_utf8_bytes() -> None:
    headers = {b"authorization": b"Bearer " + TOKEN.encode()}
    found = PRINCIPALS.authenticate(headers, takes_api_key=False)
    assert found is not None
    assert (found.token_ref, found.principal_ref) == ("ci", "team")


@pytest.mark.req("CFG-17")
def test_the_case_of_a_configured_digest_does_not_matter() -> None:
    assert Principals([token("ci", HASH.upper())]).of_token(TOKEN.encode()).token_ref == "ci"


@pytest.mark.req("CFG-17")
def test_several_tokens_of_one_principal_keep_their_own_usage_key() -> None:
    both = Principals([token(ref, hashlib.sha256(ref.encode()).hexdigest()) for ref in ("a", "b")])
    assert [both.of_token(ref).token_ref for ref in (b"a", b"b")] == ["a", "b"]
    assert {both.of_token(ref).principal_ref for ref in (b"a", b"b")} == {"team"}


@pytest.mark.req("OAI-3", "SEC-1")
@pytest.mark.parametrize(
    "authorization",
    [None, b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearer wrong", b"Bearer " + HASH.encode()],
)
def test_any_other_token_is_refused_without_being_repeated(authorization: bytes | None) -> None:
    headers = {} if authorization is None else {b"authorization": authorization}
    with pytest.raises(Fault) as caught:
        PRINCIPALS.authenticate(headers, takes_api_key=False)
    assert caught.value.code is Code.INVALID_API_KEY
    assert "wrong" not in caught.value.message
    assert HASH not in caught.value.message + repr(PRINCIPALS)


@pytest.mark.req("OAI-3")
def test_x_api_key_counts_only_where_the_surface_takes_it() -> None:
    headers = {b"x-api-key": TOKEN.encode()}
    found = PRINCIPALS.authenticate(headers, takes_api_key=True)
    assert found is not None
    assert found.token_ref == "ci"
    with pytest.raises(Fault):
        PRINCIPALS.authenticate(headers, takes_api_key=False)


@pytest.mark.req("OAI-3")
def test_without_entries_everyone_may_call_as_nobody() -> None:
    assert Principals(()).authenticate({b"authorization": b"Bearer x"}, takes_api_key=True) is None


def test_the_scheme_of_a_bearer_token_has_no_case() -> None:
    assert bearer_token(b"bEaReR  abc ") == b"abc"


AUTH = ProviderAuth(enabled=True)
FROM = b"x-iop-provider-authorization"


@pytest.mark.req("OAI-4", "CFG-18")
@pytest.mark.parametrize("given", [b"secret", b"Bearer secret", b"bearer  secret", b" secret "])
def test_the_providers_token_is_sent_with_its_scheme_once(given: bytes) -> None:
    assert provider_credential(AUTH, {FROM: given}) == ("Authorization", "Bearer secret")


@pytest.mark.req("OAI-4")
def test_header_and_scheme_of_the_provider_are_those_of_the_config() -> None:
    auth = ProviderAuth(enabled=True, from_header="X-Key", target_header="api-key", scheme="")
    assert provider_credential(auth, {b"x-key": b"secret"}) == ("api-key", "secret")


@pytest.mark.req("OAI-4")
@pytest.mark.parametrize("given", [b"", b"   ", b"Bearer", b"Bearer ", b"a\r\nb", b"\xff"])
def test_a_required_providers_token_that_is_missing_is_refused(given: bytes) -> None:
    with pytest.raises(Fault) as caught:
        provider_credential(AUTH, {FROM: given})
    assert caught.value.code is Code.PROVIDER_TOKEN_REQUIRED
    assert caught.value.shape.status == 401


@pytest.mark.req("OAI-4")
def test_without_requirement_the_adapters_own_credential_stays() -> None:
    lenient = ProviderAuth(enabled=True, required=False)
    assert provider_credential(lenient, {}) is None
    assert provider_credential(ProviderAuth(), {FROM: b"secret"}) is None


TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (TRACE, True),
        (b"01" + TRACE[2:] + b"-more", True),
        (b"01" + TRACE[2:] + b"more", False),
        (TRACE + b"-more", False),
        (b"ff" + TRACE[2:], False),
        (TRACE.upper(), False),
        (b"00-" + b"0" * 32 + TRACE[35:], False),
        (TRACE[:36] + b"0" * 16 + b"-01", False),
        (TRACE[:-1], False),
        (b"", False),
        (b"01" + TRACE[2:] + b"-" + b"x" * 200, False),
    ],
)
def test_a_trace_context_is_taken_where_it_is_valid(given: bytes, kept: bool) -> None:
    assert traceparent_of({b"traceparent": given}) == (given.decode() if kept else "")


def apply(
    protocol: CallerProtocol, given: dict[str, object], input_tokens: int = 0, **policy: int
) -> tuple[int | None, dict[str, object]]:
    members = {name: Raw(msgspec.json.encode(value)) for name, value in given.items()}
    group = ModelGroup(id="m", providers={"p": "s"}, **policy)
    changes = apply_generation_policy(protocol, members, group, input_tokens)
    return asked_tokens(protocol, members), {k: msgspec.json.decode(v) for k, v in changes.items()}


@pytest.mark.req("OAI-2")
@pytest.mark.parametrize(
    ("protocol", "field"),
    [(CHAT, "max_tokens"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")],
)
def test_the_default_limit_is_put_in_where_the_caller_gave_none(
    protocol: CallerProtocol, field: str
) -> None:
    assert apply(protocol, {}, default_max_tokens=200) == (None, {field: 200})
    assert apply(protocol, {field: 50}, default_max_tokens=200) == (50, {})


@pytest.mark.req("OAI-2")
def test_the_floor_raises_what_the_caller_asked_for_wherever_it_stands() -> None:
    assert apply(CHAT, {"max_tokens": 5}, min_max_tokens=64) == (5, {"max_tokens": 64})
    assert apply(CHAT, {"max_completion_tokens": 5}, min_max_tokens=64, default_max_tokens=100) == (
        5,
        {"max_completion_tokens": 64},
    )
    both = {"max_tokens": 100, "max_completion_tokens": 5}
    assert apply(CHAT, both, min_max_tokens=64) == (5, {"max_completion_tokens": 64})
    assert apply(CHAT, {"max_tokens": 64}, min_max_tokens=64) == (64, {})


@pytest.mark.req("OAI-2", "POOL-4")
def test_a_default_is_lowered_to_what_the_window_leaves_but_not_below_the_floor() -> None:
    policy = {"context_window_tokens": 1000, "default_max_tokens": 300, "min_max_tokens": 20}
    assert apply(CHAT, {}, 500, **policy)[1] == {"max_tokens": 300}
    assert apply(CHAT, {}, 900, **policy)[1] == {"max_tokens": 100}
    assert apply(CHAT, {}, 5000, **policy)[1] == {"max_tokens": 20}
    assert apply(CHAT, {"max_tokens": 400}, 900, **policy) == (400, {})


@pytest.mark.req("OAI-2")
def test_a_model_without_a_group_has_no_policy() -> None:
    assert apply_generation_policy(CHAT, {}, None, 0) == {}


@pytest.mark.req("OAI-2")
def test_counting_tokens_has_no_policy() -> None:
    policy = {"default_max_tokens": 9, "min_max_tokens": 9, "default_thinking_token_budget": 5}
    assert apply(COUNT_TOKENS, {}, **policy) == (None, {})


@pytest.mark.req("OAI-5")
def test_messages_needs_a_limit_from_the_caller_or_the_policy() -> None:
    with pytest.raises(Fault) as caught:
        apply(MESSAGES, {})
    assert (caught.value.code, caught.value.param) == (Code.INVALID_VALUE, "max_tokens")


ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.req("OAI-2")
@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({}, {"thinking": ENABLED}),
        ({"thinking": {"type": "enabled"}}, {"thinking": ENABLED}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {}),
        ({"thinking": {"type": "disabled"}}, {}),
        ({"max_tokens": 1024}, {}),
    ],
)
def test_a_thinking_budget_is_put_in_where_the_caller_gave_none(
    given: dict[str, object], changes: dict[str, object]
) -> None:
    asked = {"max_tokens": 4096, **given}
    assert apply(MESSAGES, asked, default_thinking_token_budget=1024)[1] == changes


@pytest.mark.req("OAI-2")
def test_a_protocol_without_such_a_field_gets_no_thinking_budget() -> None:
    for protocol in CALLER_PROTOCOLS:
        if protocol is not MESSAGES:
            assert apply(protocol, {}, default_thinking_token_budget=1024)[1] == {}


def test_a_thinking_field_that_is_none_is_named() -> None:
    with pytest.raises(Fault) as caught:
        apply(
            MESSAGES,
            {"max_tokens": 9, "thinking": {"type": 7}},
            default_thinking_token_budget=1,
        )
    assert caught.value.param == "thinking"
