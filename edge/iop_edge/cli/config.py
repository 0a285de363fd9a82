"""`iop-edge config`: check, show, schema and diff, all offline; `refresh` asks the running edge."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from iop_edge.cli.config_files import (
    EXIT_INVALID,
    EXIT_USAGE,
    config_option,
    config_paths,
    echo,
    json_option,
    read,
    show_problems,
    skip_secrets_option,
    verdict,
)
from iop_edge.cli.main import LazyGroup
from iop_edge.config.load import Loaded, Sources, load
from iop_edge.config.problems import MAX_SHOWN, ConfigInvalid
from iop_edge.runtime.sources import SourceMissing

COMMANDS = {
    "diff": "iop_edge.cli.config_diff:diff",
    "refresh": "iop_edge.cli.refresh:refresh",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def config() -> None:
    """Check, show and compare config files, and refresh the running edge."""


@config.command()
@skip_secrets_option
@config_option
@json_option
def check(skip_secrets: bool, config_files: tuple[Path, ...], as_json: bool) -> None:
    """Find everything that is wrong with a config.

    Prints each problem as `file:line:column: code: path: message`.

    \b
    Exit status
      0  valid (warnings are shown)
      1  invalid
      2  wrong usage, or a file is not there
    """
    loaded, sources = loaded_or_exit(
        config_paths(config_files), skip_secrets=skip_secrets, as_json=as_json
    )
    warnings, omitted = loaded.warnings[:MAX_SHOWN], len(loaded.warnings[MAX_SHOWN:])
    if as_json:
        print_json(verdict(warnings, omitted, is_valid=True))
        return
    show_problems(warnings, sources.files, omitted=omitted)
    effective = loaded.config
    providers = sum(len(node.providers) for node in effective.nodes)
    counts = (
        f"{_count(len(effective.nodes), 'node')}, {_count(providers, 'provider')}, "
        f"{_count(len(effective.models), 'model')}"
    )
    secrets_note = ", secrets not looked at" if skip_secrets else ""
    echo(f"valid: {counts}{secrets_note}", fg="green")


@config.command()
@skip_secrets_option
@config_option
@json_option
def show(skip_secrets: bool, config_files: tuple[Path, ...], as_json: bool) -> None:
    """Print the effective config: defaults filled in, legacy forms normalized, secrets redacted.

    The output is a config again, save for text in `extensions` under keys that speak of a secret,
    and queries of URLs, which are hidden. With --json, what only a running edge has (resolved
    profiles, where the queue policy comes from) stands apart under `resolved`.

    \b
    Exit status
      0  shown
      1  invalid
      2  wrong usage, or a file is not there
    """
    from iop_edge.config.view import resolved, view
    from iop_edge.config.yaml12.emit import emit

    loaded, sources = loaded_or_exit(
        config_paths(config_files), skip_secrets=skip_secrets, as_json=as_json
    )
    is_promoted = loaded.queue_source == "providers"
    shown = view(loaded.config, is_queue_promoted=is_promoted)
    if as_json:
        print_json(shown | {"resolved": resolved(loaded.config, queue_source=loaded.queue_source)})
        return
    warnings, omitted = loaded.warnings[:MAX_SHOWN], len(loaded.warnings[MAX_SHOWN:])
    show_problems(warnings, sources.files, omitted=omitted, err=True)
    if is_promoted:
        policy = loaded.config.provider_pool
        click.echo(
            f"# The queue policy comes from legacy keys of the providers: max_queue "
            f"{policy.max_queue}, queue_timeout_ms {policy.queue_timeout_ms}."
        )
    click.echo(emit(shown), nl=False)


@config.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of a config file, for editors; JSON in any case."""
    from iop_edge.config.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def loaded_or_exit(
    paths: Sequence[Path],
    *,
    skip_secrets: bool,
    as_json: bool,
    fingerprint_key: bytes | None = None,
) -> tuple[Loaded, Sources]:
    """The proved candidate, or the end of the command with its problems told."""
    try:
        sources = read(paths, fingerprint_key)
    except SourceMissing as missing:
        _tell(missing, (), as_json=as_json)
        sys.exit(EXIT_USAGE)
    try:
        return load(sources, skip_secrets=skip_secrets), sources
    except ConfigInvalid as invalid:
        _tell(invalid, sources.files, as_json=as_json)
        sys.exit(EXIT_INVALID)


def _tell(invalid: ConfigInvalid, files: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(verdict(invalid.problems, invalid.omitted, is_valid=False))
        return
    show_problems(invalid.problems, files, omitted=invalid.omitted)
    echo(f"invalid: {_count(invalid.errors, 'problem')}", fg="red")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(value: Any) -> None:
    """Print one document, for programs."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
