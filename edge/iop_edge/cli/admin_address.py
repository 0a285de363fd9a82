"""Which edge a command speaks to: `--admin`, `IOP_EDGE_ADMIN`, or `admin.listen` of the config.

The config is read for this one key alone, and however invalid the rest of it may be: asking an
edge why it rejects a file must work with that very file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from iop_edge.cli.config_files import config_option, config_paths, json_option
from iop_edge.config.effective import Admin
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.text import TextRefused, decode
from iop_edge.config.yaml12.tree import build

# The key at the margin, and what is indented under it; a flow mapping may close at the margin.
_SECTION = re.compile(r"^admin[ \t]*:.*(?:\n(?:[ \t#}].*|\r?$))*", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--admin`, `--config` and `--json`, as every command that asks a running edge has them."""
    admin_option = click.option(
        "--admin",
        metavar="ADDRESS",
        help="host:port or unix:/path of the edge (default: $IOP_EDGE_ADMIN, else admin.listen of"
        " the config).",
    )
    return admin_option(config_option(json_option(command)))


def admin_address(
    admin: str | None,
    config_files: Iterable[Path],
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The address to ask. Raises click.UsageError (exit 2) where a file is not there."""
    given = admin or environment.get("IOP_EDGE_ADMIN")
    if given:
        return given
    listen = Admin().listen
    for file in config_paths(config_files, environment):
        listen = _listen_of(file, environment) or listen
    return listen


def _listen_of(file: Path, environment: Mapping[str, str]) -> str | None:
    """`admin.listen` as the file has it, or None where it has none that can be read."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise click.UsageError(
            f"{file}: {error.strerror}; --admin or IOP_EDGE_ADMIN say where the edge is as well"
        ) from None
    section = _section_of(content)
    listen = section.get("listen") if isinstance(section, dict) else None
    if not isinstance(listen, str):
        return None

    def value(reference: re.Match[str]) -> str:
        return environment.get(reference["name"]) or reference["default"] or ""

    return _REFERENCE.sub(value, listen) or None


def _section_of(content: bytes) -> Any:
    """What stands under `admin`; where the file as a whole is no YAML, its lines are read alone."""
    try:
        root = _root_of(decode(content))
    except TextRefused:
        root = None
    if root is None:
        lines = _SECTION.search(content.decode("utf-8-sig", errors="replace"))
        root = None if lines is None else _root_of(lines[0])
    return None if root is None else root.get("admin")


def _root_of(text: str) -> dict[str, Any] | None:
    places = Places()
    return build(text, places.add_file("", text), places).root
