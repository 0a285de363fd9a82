"""`iop-edge node join`: the line that makes a fresh machine a node of this edge."""

from __future__ import annotations

import json
import os
import sys
from difflib import get_close_matches
from pathlib import Path

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
)
from iop_edge.config.effective import EffectiveConfig, Node, SecretRef
from iop_edge.config.load import load
from iop_edge.config.problems import ConfigInvalid
from iop_edge.config.sources import SecretUnreadable
from iop_edge.runtime.sources import SourceMissing, read_secret
from iop_edge.serve.bootstrap.artifacts import ArtifactFolder, NoArtifacts
from iop_edge.serve.bootstrap.join_line import JoinLine, NodeFiles, NotJoinable, join_line

EXIT_NOT_JOINABLE = 1


@click.group()
def node() -> None:
    """Nodes of this edge."""


@node.command()
@click.argument("node_id")
@click.option(
    "--token-file",
    metavar="F",
    help="File that holds the token, on the machine that joins (default: it is asked for there).",
)
@click.option(
    "--with-token",
    is_flag=True,
    help="Put the token into the line, for machines where nobody can type it. Whoever sees the"
    " line, or the history of the shell, then has the token.",
)
@click.option(
    "--ca-file",
    metavar="F",
    help="Authority of the edge's certificates (default: the one at the end of their chain).",
)
@click.option("--cert-file", metavar="F", help="The node's certificate, on the joining machine.")
@click.option("--key-file", metavar="F", help="The key of that certificate, likewise.")
@config_option
@json_option
def join(
    node_id: str,
    token_file: str | None,
    with_token: bool,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
    config_files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Print the one line that makes a machine this node.

    The machine needs Python 3.11 or newer and nothing else. The line pins by checksum everything
    that it fetches from the edge. It holds no token: that is asked for where the line runs, or
    read from a file there. Where the edge knows the token by its hash alone, the line begins with
    a placeholder that may be replaced by the token or left as it is.

    \b
    Exit status
      0  printed
      1  the config is invalid, or says too little for a line
      2  wrong usage, no such node, or a file is not there
    """
    if token_file is not None and with_token:
        raise click.UsageError("--token-file and --with-token: choose one")
    config = _config(config_files)
    chosen = _node(config, node_id)
    try:
        _, digest = ArtifactFolder(Path(config.bootstrap.artifact_dir)).manifest()
        made = join_line(
            config,
            manifest_sha256=digest,
            node_id=chosen.id,
            files=NodeFiles(token_file=token_file, cert_file=cert_file, key_file=key_file),
            ca_file=ca_file,
            token=_token(chosen, token_file=token_file, with_token=with_token),
        )
    except (NotJoinable, NoArtifacts) as error:
        echo(f"iop-edge: {error}", err=True, fg="red")
        sys.exit(EXIT_NOT_JOINABLE)
    _print(made, chosen, as_json=as_json)


def _config(config_files: tuple[Path, ...]) -> EffectiveConfig:
    """What the files say; secrets are not needed for a line. Ends the command where invalid."""
    try:
        sources = read(config_paths(config_files))
    except SourceMissing as missing:
        show_problems(missing.problems, (), err=True)
        sys.exit(EXIT_USAGE)
    try:
        return load(sources, skip_secrets=True).config
    except ConfigInvalid as invalid:
        show_problems(invalid.problems, sources.files, omitted=invalid.omitted, err=True)
        sys.exit(EXIT_INVALID)


def _node(config: EffectiveConfig, node_id: str) -> Node:
    known = {node.id: node for node in config.nodes}
    for known_id, found in known.items():
        if known_id == node_id:
            return found
    near = get_close_matches(node_id, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; it has " + (", ".join(known) or "none")
    raise click.UsageError(f"the config has no node {node_id}{hint}")


def _token(chosen: Node, *, token_file: str | None, with_token: bool) -> str | None:
    """What stands in the line for the token: the token, a placeholder, or nothing."""
    if token_file is not None:
        return None
    if chosen.token.sha256 is not None:
        return f"<token of {chosen.id}>"
    if not with_token:
        return None
    try:
        return _value(chosen.token)
    except SecretUnreadable as error:
        raise NotJoinable(f"the token file of node {chosen.id} {error}") from None


def _value(ref: SecretRef) -> str:
    """Raises SecretUnreadable and NotJoinable."""
    if ref.file is not None:
        return read_secret(ref.file).content.decode("utf-8", "replace").strip()
    value = os.environ.get(ref.env or "", "").strip()
    if not value:
        raise NotJoinable(f"the token is in {ref.env}, which is not set here")
    return value


def _print(made: JoinLine, chosen: Node, *, as_json: bool) -> None:
    if as_json:
        document = {
            "node_id": chosen.id,
            "line": made.line,
            "edge": made.edge,
            "bootstrap": made.bootstrap,
            "notes": list(made.notes),
        }
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    # The line alone on standard output, so that it can be piped to where it is needed.
    click.echo(made.line)
    for note in made.notes:
        echo(f"note: {note}", err=True, fg="yellow")
