"""Every path of the walker's table that needs a restart, changed alone on a running edge.

The edge runs with something at each of these paths, TLS included. No node joins it: what it says
of a candidate must not depend on that. Nothing is ever applied, so one edge serves all rows.
"""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
import trustme
from e2e_harness import Config, Edge, running_site, write

from demo.site import Site
from iop_edge.config.reload_class import Reload
from iop_edge.refresh.shape import effective_shape, rows

pytestmark = pytest.mark.e2e

NODE_KEY = {"node_env": "UPSTREAM_KEY"}
HASH, OTHER_HASH = "a" * 64, "b" * 64


def adapter(key: str) -> Config:
    return {
        "key": key,
        "type": "openai_compat",
        "base_url": "http://127.0.0.1:9",
        "headers": {"X-Team": "lab"},
        "probe": {"path": "/health"},
    }


def provider(provider_id: str, adapter_key: str, **fields: Any) -> Config:
    return {
        "id": provider_id,
        "type": "llama_cpp",
        "category": "local_inference",
        "adapter": adapter_key,
        "profile": "lab",
        "models": ["served", "spare"],
        "capacity": 2,
        **fields,
    }


def lab(site: Site, tls: Config) -> Config:
    """A valid config with something at every path that needs a restart."""
    listeners = site.listeners()
    bare = {
        "driver": "openai_chat",
        "operations": {"models": "/v1/models"},
        "capabilities": ["models"],
    }
    return {
        "edge": {"id": "rows", "name": "Rows", "advertise": "edge.example:50051"},
        "server": {**listeners["server"], "tls": {**tls, "client_ca_file": tls["cert_file"]}},
        "bootstrap": {
            **listeners["bootstrap"],
            "tls": {**tls, "client_ca_file": tls["cert_file"]},
        },
        "admin": listeners["admin"],
        "metrics": listeners["metrics"],
        "usage": {"file": str(site.group.folder / "usage.jsonl")},
        "openai": {
            **listeners["openai"],
            "tls": {**tls, "client_ca_file": tls["cert_file"]},
            "adapter": "main",
            "target": "served",
            "node": "a",
            "model_routes": [
                {"id": "old", "model": "old", "adapter": "main", "target": "served", "node": "a"}
            ],
            "principal_tokens": [
                {"token_ref": "ci", "token_hash_sha256": HASH, "principal_ref": "team"}
            ],
            "stream_evidence_gate": {
                "max_strategy_fault_recovery": 2,  # omitted, it would follow the other
                "filters": [
                    {
                        "filter": "repeat_guard",
                        "selectors": [{"provider": "a-one", "enforcement": "observe_only"}],
                    }
                ],
            },
        },
        "protocol_profiles": {
            "lab": {
                "base": "llama_cpp",
                "base_url": "http://127.0.0.1:9",
                "auth": {"header": "X-Key", "scheme": "Key", "value": NODE_KEY},
                "model_mapping": {"smart": "served"},
                "extensions": {"flag": True},
            },
            "bare": bare,
            "same": copy.deepcopy(bare),
            "heir": {"base": "bare"},
        },
        "models": [{"id": "smart", "providers": {"a-one": "served"}}],
        "nodes": [
            {
                "id": "a",
                "token": {"sha256": HASH},
                "adapters": [adapter("main"), adapter("second"), adapter("spare")],
                "providers": [
                    provider("a-one", "main", provider="label"),
                    provider("a-two", "second"),
                ],
            },
            {"id": "b", "token": {"sha256": OTHER_HASH}, "adapters": [adapter("main")]},
        ],
    }


Edit = Callable[[Config], object]


def put(path: str, value: Any) -> Edit:
    """Write a value at a place of the file. `nodes.0.alias` names places by key and index."""

    def edit(config: Config) -> None:
        *way, last = path.split(".")
        at: Any = config
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
        at[last] = value

    return edit


MAIN, SPARE = "nodes.0.adapters.0", "nodes.0.adapters.2"
ONE, TWO = "nodes.0.providers.0", "nodes.0.providers.1"
GATE = "openai.stream_evidence_gate"
FILTER = f"{GATE}.filters.0"

ROWS: dict[str, Edit] = {
    **{
        path: put(path, value)
        for path, value in {
            "edge.id": "other",
            "edge.name": "Other",
            "edge.advertise": "other.example:50051",
            "server.listen": "127.0.0.1:1",
            "server.tls.cert_file": "/etc/iop/other.crt",
            "server.tls.key_file": "/etc/iop/other.key",
            "server.tls.client_ca_file": None,
            "server.insecure": True,
            "server.drain_deadline_ms": 1000,
            "server.grpc_health": False,
            "server.grpc_reflection": True,
            "bootstrap.listen": "127.0.0.1:1",
            "bootstrap.advertise": "http://edge.example:18080",
            "bootstrap.artifact_dir": "/var/lib/iop/other",
            "bootstrap.tls.cert_file": "/etc/iop/other.crt",
            "bootstrap.tls.key_file": "/etc/iop/other.key",
            "bootstrap.tls.client_ca_file": None,
            "bootstrap.insecure": True,
            "admin.listen": "127.0.0.1:1",
            "logging.level": "debug",
            "logging.format": "console",
            "metrics.listen": "127.0.0.1:1",
            "usage.file": "/var/lib/iop/other.jsonl",
            "telemetry.otlp_endpoint": "http://127.0.0.1:4317",
            "console.enabled": True,
            "console.listen": "127.0.0.1:1",
            "control_plane.enabled": True,
            "control_plane.url": "http://127.0.0.1:1",
            "a2a.enabled": True,
            "a2a.listen": "127.0.0.1:1",
            "openai.enabled": False,
            "openai.listen": "127.0.0.1:1",
            "openai.tls.cert_file": "/etc/iop/other.crt",
            "openai.tls.key_file": "/etc/iop/other.key",
            "openai.tls.client_ca_file": None,
            "openai.insecure": True,
            "openai.limits.max_body_bytes": 1_048_576,
            "openai.limits.max_header_bytes": 32_768,
            "openai.limits.receive_timeout_ms": 5000,
            "openai.limits.write_timeout_ms": 5000,
            "openai.limits.max_connections": 100,
            "openai.provider_id": "other",
            "openai.adapter": "second",
            "openai.target": "spare",
            "openai.node": "b",
            "openai.provider_auth.enabled": True,
            "openai.provider_auth.from_header": "X-Other",
            "openai.provider_auth.target_header": "X-Other",
            "openai.provider_auth.scheme": "Key",
            "openai.provider_auth.required": False,
            f"{GATE}.enabled": True,
            f"{GATE}.max_request_fault_recovery": 2,
            f"{GATE}.max_strategy_fault_recovery": 1,
            f"{GATE}.max_ingress_snapshot_bytes": 1000,
            f"{GATE}.environment": "dev-corp",
        }.items()
    },
    f"{GATE}.filters[]": lambda c: c["openai"]["stream_evidence_gate"]["filters"].append(
        {"filter": "schema_gate"}
    ),
    f"{GATE}.filters[].enabled": put(f"{FILTER}.enabled", False),
    f"{GATE}.filters[].enforcement": put(f"{FILTER}.enforcement", "observe_only"),
    f"{GATE}.filters[].capability": put(f"{FILTER}.capability", "tool_calling"),
    f"{GATE}.filters[].hold_evidence_runes": put(f"{FILTER}.hold_evidence_runes", 100),
    f"{GATE}.filters[].timeout_ms": put(f"{FILTER}.timeout_ms", 100),
    f"{GATE}.filters[].selectors": put(f"{FILTER}.selectors", []),
    "openai.model_routes[]": put("openai.model_routes", []),
    "openai.model_routes[].model": put("openai.model_routes.0.model", "older"),
    "openai.model_routes[].adapter": put("openai.model_routes.0.adapter", "second"),
    "openai.model_routes[].target": put("openai.model_routes.0.target", "spare"),
    "openai.model_routes[].node": put("openai.model_routes.0.node", "b"),
    "openai.model_routes[].provider_id": put("openai.model_routes.0.provider_id", "other"),
    "openai.principal_tokens[]": lambda c: c["openai"]["principal_tokens"].append(
        {"token_ref": "cd", "token_hash_sha256": OTHER_HASH, "principal_ref": "team"}
    ),
    "openai.principal_tokens[].token_hash_sha256": put(
        "openai.principal_tokens.0.token_hash_sha256", OTHER_HASH
    ),
    "openai.principal_tokens[].principal_ref": put(
        "openai.principal_tokens.0.principal_ref", "others"
    ),
    "openai.principal_tokens[].principal_alias": put(
        "openai.principal_tokens.0.principal_alias", "Others"
    ),
    "protocol_profiles[]": put("protocol_profiles.more", {"base": "bare"}),
    "protocol_profiles[].base": put("protocol_profiles.heir.base", "same"),
    "protocol_profiles[].driver": put("protocol_profiles.same.driver", "openai_responses"),
    "protocol_profiles[].base_url": put("protocol_profiles.lab.base_url", "http://127.0.0.1:8"),
    "protocol_profiles[].operations[]": put(
        "protocol_profiles.lab.operations", {"models": "/models"}
    ),
    "protocol_profiles[].auth.header": put("protocol_profiles.lab.auth.header", "X-Other"),
    "protocol_profiles[].auth.scheme": put("protocol_profiles.lab.auth.scheme", "Bearer"),
    "protocol_profiles[].auth.value": put(
        "protocol_profiles.lab.auth.value", {"node_file": "/run/secrets/key"}
    ),
    "protocol_profiles[].capabilities": put(
        "protocol_profiles.lab.capabilities", ["chat", "streaming"]
    ),
    "protocol_profiles[].model_mapping[]": put(
        "protocol_profiles.lab.model_mapping", {"smart": "served", "more": "spare"}
    ),
    "protocol_profiles[].extensions[]": put("protocol_profiles.lab.extensions", {"flag": False}),
    "nodes[]": lambda c: c["nodes"].append({"id": "c", "token": {"sha256": "c" * 64}}),
    "nodes[].alias": put("nodes.0.alias", "rack1"),
    "nodes[].agent_kind": put("nodes.0.agent_kind", "gpu"),
    "nodes[].token": put("nodes.0.token", {"sha256": "c" * 64}),
    "nodes[].adapters[]": lambda c: c["nodes"][0]["adapters"].pop(),
    "nodes[].adapters[].type": put(f"{SPARE}.type", "anthropic"),
    "nodes[].adapters[].enabled": put(f"{SPARE}.enabled", False),
    "nodes[].adapters[].base_url": put(f"{MAIN}.base_url", "http://127.0.0.1:8"),
    "nodes[].adapters[].headers[]": put(f"{MAIN}.headers", {"X-Key": NODE_KEY}),
    "nodes[].adapters[].headers[].value": put(f"{MAIN}.headers.X-Team", "other"),
    # What the file wrote without a scheme is now what the profile sends with one.
    "nodes[].adapters[].headers[].scheme": put(f"{MAIN}.headers", {"X-Team": "lab"}),
    "nodes[].adapters[].provider_label": put(f"{ONE}.provider", "other"),
    "nodes[].adapters[].context_size": put(f"{MAIN}.context_size", 4096),
    "nodes[].adapters[].ca_file": put(f"{MAIN}.ca_file", "/etc/ssl/other.crt"),
    "nodes[].adapters[].allow_link_local": put(f"{MAIN}.allow_link_local", True),
    "nodes[].adapters[].connect_timeout_ms": put(f"{MAIN}.connect_timeout_ms", 1000),
    "nodes[].adapters[].first_byte_timeout_ms": put(f"{MAIN}.first_byte_timeout_ms", 1000),
    "nodes[].adapters[].idle_timeout_ms": put(f"{MAIN}.idle_timeout_ms", 1000),
    "nodes[].adapters[].request_timeout_ms": put(f"{MAIN}.request_timeout_ms", 1000),
    "nodes[].adapters[].probe.path": put(f"{MAIN}.probe.path", "/other"),
    "nodes[].adapters[].probe.interval_ms": put(f"{MAIN}.probe.interval_ms", 20_000),
    "nodes[].adapters[].probe.timeout_ms": put(f"{MAIN}.probe.timeout_ms", 1000),
    "nodes[].adapters[].probe.failures": put(f"{MAIN}.probe.failures", 9),
    "nodes[].providers[]": lambda c: c["nodes"][0]["providers"].pop(),
    "nodes[].providers[].type": put(f"{ONE}.type", "vllm"),
    "nodes[].providers[].category": put(f"{ONE}.category", "api"),
    "nodes[].providers[].adapter": put(f"{TWO}.adapter", "spare"),
    "nodes[].providers[].profile": put(f"{TWO}.profile", "llama_cpp"),
    "nodes[].providers[].models": put(f"{ONE}.models", ["served"]),
    "nodes[].providers[].health": put(f"{ONE}.health", "healthy"),
    "nodes[].providers[].lifecycle_capabilities": put(f"{ONE}.lifecycle_capabilities", ["load"]),
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key = folder / "tls.key"
    certificate.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    with (folder / "tls.crt").open("wb") as chain:
        for blob in (*certificate.cert_chain_pems, authority.cert_pem):
            chain.write(blob.bytes())
    return {"cert_file": str(folder / "tls.crt"), "key_file": str(key)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tls: Config) -> Iterator[tuple[Site, Config]]:
    with running_site(tmp_path_factory.mktemp("rows")) as site:
        config = lab(site, tls)
        # Takes the place of the profile's own header, which has a scheme.
        config["nodes"][0]["adapters"][0]["headers"]["X-Key"] = NODE_KEY
        write(site, config)
        site.start_edge()
        yield site, config


@pytest.fixture
async def edge(site: tuple[Site, Config]) -> AsyncIterator[Edge]:
    async with aiohttp.ClientSession() as http:
        yield Edge(site[0], http)


def test_every_path_that_needs_a_restart_has_a_row_here() -> None:
    table = {row.pattern for row in rows(effective_shape()) if row.reload is Reload.RESTART}
    assert set(ROWS) == table


@pytest.mark.req("REF-2", "REF-4", "REF-6", "REF-7", "REF-12")
@pytest.mark.parametrize("pattern", ROWS)
async def test_a_path_that_needs_a_restart_is_reported_alone_and_nothing_is_applied(
    edge: Edge, site: tuple[Site, Config], pattern: str
) -> None:
    candidate = copy.deepcopy(site[1])
    ROWS[pattern](candidate)
    write(edge.site, candidate)
    http_status, result = await edge.refresh()
    assert (http_status, result["status"]) == (409, "restart_required"), result
    [change] = result["changes"]
    assert re.sub(r"\[[^\]]*\]", "[]", change["path"]) == pattern
    assert change["class"] == "restart"
    # Of two digests neither is shown.
    assert change["old"] != change["new"] or pattern == "nodes[].token"
    assert change["reason"]
    assert result["restart_required_paths"] == [change["path"]]
    assert result["generation"] == {"before": 1, "after": 1}
    status = await edge.status()
    assert status["generation"] == 1
    assert status["pending_restart_paths"] == [change["path"]]
