"""`iop-edge config diff`: what a change of files would mean, judged by the refresh planner."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from iop_edge.cli.config import loaded_or_exit, print_json
from iop_edge.cli.config_files import echo, json_option, skip_secrets_option
from iop_edge.config.effective import SecretRef
from iop_edge.refresh.diff import Change
from iop_edge.refresh.diff import diff as differences
from iop_edge.refresh.plan import Plan, plan
from iop_edge.refresh.receipt import ChangeReport

EXIT_LIVE = 3
EXIT_RESTART = 4

MAX_VALUE_WIDTH = 60


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@skip_secrets_option
@json_option
def diff(before: str, after: str, skip_secrets: bool, as_json: bool) -> None:
    """Compare two configs by meaning, and say what takes effect when.

    A and B are each one file, or several joined by commas that are merged in order. Order, comments
    and defaults written out are no difference.

    \b
    Exit status
      0  no difference
      1  one of them is invalid
      2  wrong usage, or a file is not there
      3  a refresh would apply everything
      4  a restart is needed
    """
    # One key for both, so that equal secrets have equal fingerprints.
    key = secrets.token_bytes(32)
    old, new = (
        loaded_or_exit(paths, skip_secrets=skip_secrets, as_json=as_json, fingerprint_key=key)[0]
        for paths in (_paths(before), _paths(after))
    )

    def same_secret(ref: SecretRef) -> bool:
        return old.vault.fingerprint(ref) == new.vault.fingerprint(ref)

    outcome = plan(differences(old.config, new.config, same_secret), frozenset())
    if as_json:
        print_json(_report(outcome))
    else:
        _show(outcome)
    sys.exit(_exit_status(outcome))


def _paths(files: str) -> list[Path]:
    paths = [Path(one) for one in files.split(",") if one]
    if not paths:
        raise click.UsageError("A and B each name one file, or several joined by commas")
    return paths


def _exit_status(outcome: Plan) -> int:
    if not outcome.changes:
        return 0
    return EXIT_RESTART if outcome.needs_restart else EXIT_LIVE


def _word(outcome: Plan) -> str:
    if not outcome.changes:
        return "none"
    return "restart" if outcome.needs_restart else "live"


def _report(outcome: Plan) -> dict[str, Any]:
    return {
        "verdict": _word(outcome),
        "changes": [
            msgspec.to_builtins(
                ChangeReport(
                    path=str(change.path),
                    reload=change.reload.value,
                    old=change.old,
                    new=change.new,
                    reason=change.reason,
                )
            )
            for change in outcome.changes
        ],
        "live_paths": list(outcome.live_paths),
        "restart_required_paths": list(outcome.restart_paths),
        "changed_nodes": list(outcome.changed_nodes),
        "changed_providers": list(outcome.changed_providers),
        "changed_models": list(outcome.changed_models),
    }


def _show(outcome: Plan) -> None:
    """Live changes, then those that need a restart, each with its reason; the verdict last."""
    restart = [one for one in outcome.changes if one.reason is not None]
    live = [one for one in outcome.changes if one.reason is None]
    _group(live)
    if live and restart:
        click.echo()
    _group(restart)
    if not outcome.changes:
        echo("No difference.", fg="green")
        return
    click.echo()
    counts = f"{len(live)} live, {len(restart)} restart"
    if outcome.needs_restart:
        echo(f"Restart needed: {counts}. A refresh would apply nothing.", fg="yellow")
    else:
        echo(f"A refresh would apply everything: {counts}.", fg="green")


def _group(changes: Sequence[Change]) -> None:
    width = max((len(_what(change)) for change in changes), default=0)
    for change in changes:
        sign, color = _sign(change)
        what = _what(change)
        word = change.reload.value
        line = f"{click.style(sign, fg=color)} {what}{' ' * (width - len(what))}  "
        echo(line + click.style(word, fg="green" if word == "live" else "yellow"))
        if change.reason is not None:
            echo(f"    {change.reason}", dim=True)


def _sign(change: Change) -> tuple[str, str]:
    if change.path.last_entry is not None and change.old is None:
        return "+", "green"
    if change.path.last_entry is not None and change.new is None:
        return "-", "red"
    return "~", "yellow"


def _what(change: Change) -> str:
    sign, _ = _sign(change)
    if sign != "~":
        value = change.new if sign == "+" else change.old
        shown = "" if isinstance(value, dict) else f" {_brief(value)}"
        return f"{change.path}{shown}"
    if change.old == change.new:
        return f"{change.path} {_brief(change.old)} (changed)"
    return f"{change.path} {_brief(change.old)} → {_brief(change.new)}"


def _brief(value: Any) -> str:
    if value is None:
        return "(none)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_WIDTH else f"{text[: MAX_VALUE_WIDTH - 1]}…"
