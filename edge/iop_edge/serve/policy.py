"""Who may call, with whose credential at the upstream, and under which generation policy.

Pure judgements over headers and fields. Tokens are compared here and never leave: what goes on is
a `Principal`, or the one header that the upstream is to get (OAI-3, OAI-4).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from iop_edge.config.effective import ModelGroup, PrincipalToken, ProviderAuth
from iop_edge.runtime.work import Principal
from iop_edge.serve.dialect.caller_protocols import CallerProtocol
from iop_edge.serve.dialect.json_value import NOT_JSON
from iop_edge.serve.dialect.request import Members, whole_number
from iop_shared.errors import Code, Fault
from iop_shared.tracing import TraceContext

Headers = Mapping[bytes, bytes]

_CREDENTIAL = re.compile(rb"[\x21-\x7e][\x20-\x7e]*")


class Principals:
    """The callers that the config names, by the digest of their tokens (CFG-17).

    Without entries everyone may call, as nobody: the config allows that on loopback alone.
    """

    def __init__(self, tokens: Iterable[PrincipalToken]) -> None:
        self._by_digest = {
            bytes.fromhex(token.token_hash_sha256): Principal(
                token_ref=token.token_ref,
                principal_ref=token.principal_ref,
                principal_alias=token.principal_alias,
            )
            for token in tokens
        }
        self._digests = {digest: digest for digest in self._by_digest}

    def __repr__(self) -> str:
        return f"Principals({len(self._by_digest)} tokens)"

    def authenticate(self, headers: Headers, *, takes_api_key: bool) -> Principal | None:
        """Who calls; None where no principals are configured.

        The token is that of `Authorization: Bearer`, or of `x-api-key` where the surface takes
        it. Raises Fault(invalid_api_key).
        """
        if not self._by_digest:
            return None
        token = bearer_token(headers.get(b"authorization"))
        if token is None and takes_api_key:
            token = headers.get(b"x-api-key")
        if not token:
            also = " or x-api-key" if takes_api_key else ""
            raise Fault(
                Code.INVALID_API_KEY, f"send a token as Authorization: Bearer <token>{also}"
            )
        return self.of_token(token)

    def of_token(self, token: bytes) -> Principal:
        """Whose token these UTF-8 bytes are. Raises Fault(invalid_api_key)."""
        digest = hashlib.sha256(token).digest()
        known = self._digests.get(digest, bytes(32))
        if not hmac.compare_digest(known, digest):
            raise Fault(Code.INVALID_API_KEY, "this token is not known here")
        return self._by_digest[known]


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization: Bearer` header; None where there is no such one."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def provider_credential(auth: ProviderAuth, headers: Headers) -> tuple[str, str] | None:
    """The caller's own provider token as the header that the upstream gets (OAI-4).

    None where that is off, or where the caller sent none and need not. The scheme is put before
    the token once. Raises Fault(provider_token_required).
    """
    if not auth.enabled:
        return None
    given = headers.get(auth.from_header.lower().encode("ascii"), b"").strip()
    scheme = auth.scheme.encode("ascii")
    if scheme and given.lower().startswith(scheme.lower() + b" "):
        given = given[len(scheme) + 1 :].lstrip()
    if scheme and given.lower() == scheme.lower():
        given = b""
    if not _CREDENTIAL.fullmatch(given):
        if auth.required or given:
            raise Fault(
                Code.PROVIDER_TOKEN_REQUIRED, f"send the provider's token as {auth.from_header}"
            )
        return None
    token = given.decode("ascii")
    return auth.target_header, f"{auth.scheme} {token}" if scheme else token


def traceparent_of(headers: Headers) -> str:
    """The caller's W3C trace context where it is a valid one, else an empty string."""
    given = headers.get(b"traceparent", b"").strip()
    if not given or len(given) > 128 or not given.isascii():
        return ""
    told = given.decode("ascii")
    return told if TraceContext.parse(told) is not None else ""


def asked_tokens(protocol: CallerProtocol, members: Members) -> int | None:
    """The output that the caller asked for; a policy's own default is not counted (POOL-4)."""
    for name in protocol.limit_fields:
        limit = whole_number(members, name)
        if limit is not None:
            return limit
    return None


def apply_generation_policy(
    protocol: CallerProtocol, members: Members, group: ModelGroup | None, input_tokens: int
) -> dict[str, bytes]:
    """Literals that replace fields of the request, or are added to it (OAI-2).

    A limit that the caller gave is raised to the floor; where it gave none the default is put in,
    lowered to what the context window leaves beside `input_tokens`, but not below the floor. A
    model without a group (a route, the fallback) has no policy. Raises Fault(invalid_value).
    """
    changes: dict[str, bytes] = {}
    effective: int | None = None
    floor = 0 if group is None else group.min_max_tokens or 0
    for name in protocol.limit_fields:
        limit = whole_number(members, name)
        if limit is None:
            continue
        if limit < floor:
            limit = floor
            changes[name] = b"%d" % floor
        if effective is None:
            effective = limit
    default = None if group is None else group.default_max_tokens
    if effective is None and protocol.limit_fields and group is not None and default is not None:
        effective = fitted_limit(default, group, input_tokens)
        changes[protocol.default_limit_field] = b"%d" % effective
    if effective is None and protocol.requires_limit:
        raise Fault(
            Code.INVALID_VALUE,
            "max_tokens must be a whole number of 1 or more",
            param=protocol.default_limit_field,
        )
    if protocol.has_thinking_budget and group is not None:
        changes |= _thinking(members, group.default_thinking_token_budget, effective)
    return changes


def fitted_limit(default: int, group: ModelGroup, input_tokens: int) -> int:
    """A policy's own output limit, lowered to what the window leaves, not below the floor."""
    if group.context_window_tokens is None:
        return default
    room = group.context_window_tokens - input_tokens
    return max(min(default, room), group.min_max_tokens or 1)


class _Thinking(Struct):
    type: str = ""
    budget_tokens: int | None = None


def _thinking(members: Members, default: int | None, limit: int | None) -> dict[str, bytes]:
    """A budget where the caller gave none. One that leaves no room for an answer is not set."""
    if default is None or (limit is not None and default >= limit):
        return {}
    raw = members.get("thinking")
    if raw is not None:
        try:
            thinking = msgspec.json.decode(raw, type=_Thinking)
        except NOT_JSON:
            raise Fault(
                Code.INVALID_VALUE,
                "thinking must be an object with a type and a whole number of budget_tokens",
                param="thinking",
            ) from None
        if thinking.type != "enabled" or thinking.budget_tokens is not None:
            return {}
    return {"thinking": b'{"type":"enabled","budget_tokens":%d}' % default}
