"""Which config files a command reads, and how it tells what is wrong with them."""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from iop_edge.config.excerpt import Excerpts
from iop_edge.config.problems import Problem
from iop_edge.config.sources import SourceFile, Sources
from iop_edge.runtime.sources import read_sources

VARIABLE = "IOP_EDGE_CONFIG"
DEFAULT_FILES = (Path("edge.yaml"), Path("/etc/iop/edge.yaml"))

EXIT_INVALID = 1
EXIT_USAGE = 2


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--config FILE`, repeatable."""
    return click.option(
        "--config",
        "config_files",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Config file; repeat it to merge several, later over earlier (default: "
        f"${VARIABLE}, else ./edge.yaml, else /etc/iop/edge.yaml).",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(
        command
    )


skip_secrets_option = click.option(
    "--skip-secrets", is_flag=True, help="Resolve no secrets, where they are not at hand."
)


def config_paths(
    given: Iterable[Path], environment: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """The files a command reads: those given, else the variable's (joined by commas), else the
    first default that is there. Where none is, the first default, whose absence is then told."""
    paths = tuple(given)
    if paths:
        return paths
    named = tuple(Path(one) for one in environment.get(VARIABLE, "").split(",") if one)
    if named:
        return named
    return (next((one for one in DEFAULT_FILES if one.exists()), DEFAULT_FILES[0]),)


def read(paths: Sequence[Path], fingerprint_key: bytes | None = None) -> Sources:
    """The files' candidate, for one command. Raises SourceMissing."""
    return read_sources(paths, fingerprint_key=fingerprint_key or secrets.token_bytes(32))


def show_problems(
    problems: Sequence[Problem], files: Sequence[SourceFile], *, omitted: int = 0, err: bool = False
) -> None:
    """Every problem, one line each, with its line of the file below; on a terminal in colour."""
    excerpts = Excerpts(files)
    for problem in problems:
        _show(problem, excerpts, err=err)
    if omitted:
        echo(f"… and {omitted} more", err=err, fg="red")


def verdict(problems: Sequence[Problem], omitted: int, *, is_valid: bool) -> dict[str, Any]:
    """What `config check --json` prints."""
    return {
        "valid": is_valid,
        "problems": [msgspec.to_builtins(one) for one in problems],
        "omitted": omitted,
    }


def echo(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a line; styled on a terminal only, and never where NO_COLOR is set."""
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(text, **style) if style else text, err=err, color=color)


def _show(problem: Problem, excerpts: Excerpts, *, err: bool) -> None:
    color = "yellow" if problem.severity == "warning" else "red"
    marker = "warning: " if problem.severity == "warning" else ""
    place, _, rest = str(problem).partition(f": {problem.code}:")
    line = f"{click.style(place, bold=True)}: {click.style(marker + problem.code, fg=color)}:{rest}"
    echo(line, err=err)
    excerpt = excerpts.of(problem)
    if excerpt is None:
        return
    number = f"{problem.line:>6} "
    margin = " " * len(number)
    indent = _width(excerpt.text[: excerpt.caret])
    echo(f"{click.style(number + '│', fg='blue')} {excerpt.text}", err=err)
    echo(
        f"{click.style(margin + '│', fg='blue')} {' ' * indent}{click.style('^', fg=color)}",
        err=err,
    )


def _width(text: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )
