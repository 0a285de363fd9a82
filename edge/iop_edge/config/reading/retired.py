"""Keys of an older system that IOP must never take for its own (CFG-5, OPS-1).

Checked on the raw tree, before decoding could drop them, and only where the keys of a struct
stand: never inside a secret reference or a free map, whose keys are the operator's own.
"""

from __future__ import annotations

from typing import Any

from iop_edge.config.report import Report
from iop_edge.config.yaml12.places import Steps

_LAUNCH = (
    "IOP starts no processes: run the model server under your own supervisor (systemd, a "
    "container), and name its address in an adapter's `base_url`"
)
_INTERACTIVE = (
    "IOP holds no terminals or conversations: a run is one request, and what continues it is the "
    "caller's"
)
_AUTOMATION = (
    "IOP owns no automations: what schedules work and whose it is belongs to the program that "
    "calls the edge"
)

RETIRED: dict[str, str] = {
    **dict.fromkeys(
        ("command", "args", "env", "executable", "shell", "working_dir", "workdir", "cwd"), _LAUNCH
    ),
    **dict.fromkeys(
        (
            "mode",
            "terminal",
            "tty",
            "pty",
            "interactive",
            "resume_args",
            "output_format",
            "session",
            "resume",
        ),
        _INTERACTIVE,
    ),
    **dict.fromkeys(
        ("automation", "automations", "schedule", "schedules", "workspace", "owner"), _AUTOMATION
    ),
}
_KEYS = frozenset(RETIRED)

CODE = "retired_key"


def refuse_retired(root: dict[str, Any], report: Report) -> None:
    """Report every retired key and value of `root`."""
    _keys(root, (), report)
    _keys(root.get("edge"), ("edge",), report)
    _openai(root.get("openai"), ("openai",), report)
    nodes = root.get("nodes")
    if not isinstance(nodes, list):
        return
    for number, node in enumerate(nodes):
        if not isinstance(node, dict):
            continue
        steps: Steps = ("nodes", number)
        _keys(node, steps, report)
        _keys(node.get("runtime"), (*steps, "runtime"), report)
        _adapters(node.get("adapters"), (*steps, "adapters"), report)
        providers = node.get("providers")
        if isinstance(providers, list):
            for position, provider in enumerate(providers):
                _provider(provider, steps, position, report)


def _keys(body: Any, steps: Steps, report: Report) -> None:
    if not isinstance(body, dict) or _KEYS.isdisjoint(body):
        return
    for key in body:
        if key in RETIRED:
            _refuse(f"`{key}` is not a key of IOP any more: {RETIRED[key]}", (*steps, key), report)


def _refuse(message: str, steps: Steps, report: Report) -> None:
    report.error(CODE, message, steps, on_key=True)
    report.close(steps)


def _adapters(adapters: Any, steps: Steps, report: Report) -> None:
    if isinstance(adapters, dict):
        for key, body in adapters.items():
            if key == "cli":
                _refuse(f"there are no `cli` adapters any more: {_LAUNCH}", (*steps, key), report)
            _keys(body, (*steps, key), report)
    elif isinstance(adapters, list):
        for position, adapter in enumerate(adapters):
            _keys(adapter, (*steps, position), report)
            if isinstance(adapter, dict) and adapter.get("type") == "cli":
                _refuse(
                    f"there is no adapter type `cli` any more: {_LAUNCH}",
                    (*steps, position, "type"),
                    report,
                )


def _provider(provider: Any, node: Steps, position: int, report: Report) -> None:
    if not isinstance(provider, dict):
        return
    if not _KEYS.isdisjoint(provider):
        _keys(provider, (*node, "providers", position), report)
    for field in ("category", "type"):
        if provider.get(field) == "cli":
            _refuse(
                f"there is no provider {field} `cli` any more: {_LAUNCH}",
                (*node, "providers", position, field),
                report,
            )


def _openai(body: Any, steps: Steps, report: Report) -> None:
    """The section and everything below it, which is all structs."""
    if isinstance(body, dict):
        _keys(body, steps, report)
        for key, inner in body.items():
            if isinstance(inner, dict | list):
                _openai(inner, (*steps, key), report)
    elif isinstance(body, list):
        for position, inner in enumerate(body):
            _openai(inner, (*steps, position), report)
