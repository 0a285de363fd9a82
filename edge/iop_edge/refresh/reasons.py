"""Why a path needs a restart: what its value is bound to once the edge has started (REF-12).

Sentences only. Whether a path needs a restart is said at the field and read by `shape`; this
module is asked for a reason after that is settled.
"""

from __future__ import annotations

from typing import NamedTuple


class _Binding(NamedTuple):
    pattern: str
    reason: str


# The longest pattern that begins a path's own gives its reason.
_BINDINGS = (
    _Binding("edge", "The edge's identity is told to every node when its session begins."),
    _Binding("server", "The gRPC listener for nodes and SubmitRun is opened once, at start."),
    _Binding(
        "server.drain_deadline_ms",
        "The drain deadline is handed to nodes and to the stop sequence once, at start.",
    ),
    _Binding("bootstrap", "The bootstrap listener is opened once, at start."),
    _Binding(
        "admin", "The admin listener is opened once, at start, and carries this very refresh."
    ),
    _Binding("logging", "Log output is set up once, at start."),
    _Binding("metrics", "The metrics listener is opened once, at start."),
    _Binding("usage", "The usage file is opened once, at start."),
    _Binding("telemetry", "The trace exporter is built once, at start."),
    _Binding("console", "The console listener is opened once, at start."),
    _Binding("control_plane", "The connection to the control plane is made once, at start."),
    _Binding("a2a", "The A2A listener is opened once, at start."),
    _Binding("openai", "The HTTP ingress for callers is built once, at start."),
    _Binding("openai.listen", "The listener for callers is opened once, at start."),
    _Binding("openai.tls", "The listener for callers is opened once, at start."),
    _Binding("openai.limits", "The listener for callers takes its limits when it is opened."),
    _Binding("openai.model_routes", "Legacy routes are resolved once, when the ingress is built."),
    _Binding(
        "openai.principal_tokens",
        "The table of principals is built with the ingress, so that a token is judged alike"
        " from one start to the next.",
    ),
    _Binding(
        "openai.stream_evidence_gate",
        "The gate's filters and bounds are built with the ingress and frozen per request.",
    ),
    _Binding(
        "protocol_profiles",
        "Profiles are resolved once, at start, into the adapters that use them.",
    ),
    _Binding("nodes", "The set of nodes that may connect is fixed at start."),
    _Binding("nodes[].alias", "A node's identity is bound to its session."),
    _Binding("nodes[].agent_kind", "A node's identity is bound to its session."),
    _Binding("nodes[].token", "The table of node tokens is built once, at start."),
    _Binding(
        "nodes[].adapters",
        "An adapter's connections, credentials and profile are bound to its instance on the node.",
    ),
    _Binding(
        "nodes[].providers",
        "A provider is a resource that owns slots under its id; the set of them is fixed at start.",
    ),
    _Binding("nodes[].providers[].type", "It decides which adapter and profile the provider has."),
    _Binding(
        "nodes[].providers[].category", "It is part of what the provider's resource stands for."
    ),
    _Binding(
        "nodes[].providers[].adapter", "The provider is bound to its adapter instance at start."
    ),
    _Binding(
        "nodes[].providers[].profile",
        "The profile is resolved once, at start, into the provider's adapter instance.",
    ),
    _Binding("nodes[].providers[].models", "The served names are bound to the adapter instance."),
    _Binding(
        "nodes[].providers[].health",
        "The declared health is taken once, at start; probes can only lower it.",
    ),
    _Binding(
        "nodes[].providers[].lifecycle_capabilities",
        "What the provider's upstream may be told to do is fixed with its adapter instance.",
    ),
)

SECRET_CHANGED = "The secret behind this reference has changed; it is read once, at start."  # noqa: S105 - a sentence


def reason_for(pattern: str) -> str:
    """The reason for a path of this pattern. Raises `KeyError` where none is known."""
    fitting = [
        binding
        for binding in _BINDINGS
        if pattern == binding.pattern
        or pattern.startswith((f"{binding.pattern}.", f"{binding.pattern}[]"))
    ]
    if not fitting:
        raise KeyError(pattern)
    return max(fitting, key=lambda binding: len(binding.pattern)).reason
