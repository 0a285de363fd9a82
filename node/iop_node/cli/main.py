"""`iop-node`: run a node, or ask whether the one that runs here is well."""

from __future__ import annotations

import json
import os
import signal
import sys

import click

from iop_shared import early_signals

EXIT_SETTINGS = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="iop", prog_name="iop-node")
def main() -> None:
    """A node of IOP: it joins its edge by itself and runs requests on the models beside it."""


@main.command()
def run() -> None:
    """Join the edge and serve until SIGTERM.

    \b
    IOP_EDGE              host:port of the edge
    IOP_NODE_TOKEN        this node's token, or
    IOP_NODE_TOKEN_FILE   a file that holds it
    IOP_EDGE_CA_FILE      CA of the edge's certificate (default: the system's)
    IOP_EDGE_INSECURE=1   plaintext off loopback
    IOP_NODE_CERT_FILE, IOP_NODE_KEY_FILE   this node's own certificate
    IOP_NODE_METRICS      host:port for Prometheus (default: none)
    IOP_OTLP_ENDPOINT     OTLP/HTTP collector for traces (default: none)
    IOP_LOG_LEVEL         debug | info | warning | error
    IOP_LOG_FORMAT        json | console

    Exit status: 0 after a drain, 2 a variable is missing or wrong, 6 the edge does not know the
    token, 7 a second signal ended it.
    """
    # Before anything that takes time to load.
    with early_signals.held(signal.SIGTERM):
        sys.exit(_run())


def _run() -> int:
    # The library's own lines on every failed handshake say less than ours, in another format.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    import uvloop

    from iop_node import app
    from iop_node.identity import SettingsInvalid
    from iop_node.settings import read_settings
    from iop_shared import logs

    try:
        settings = read_settings(os.environ)
        logs.configure(settings.log_level, settings.log_format)
        return uvloop.run(app.run(settings))
    except SettingsInvalid as error:
        click.echo(f"iop-node: {error}", err=True)
        return EXIT_SETTINGS


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def health(as_json: bool) -> None:
    """Exit 0 when the node that runs here (same IOP_EDGE and token) is connected and configured."""
    # Asked for every few seconds: it loads none of what only a running node needs.
    from iop_node.health import is_healthy, state_path
    from iop_node.identity import SettingsInvalid, edge_address, node_token

    try:
        path = state_path(edge_address(os.environ), node_token(os.environ))
    except SettingsInvalid as error:
        click.echo(f"iop-node: {error}", err=True)
        sys.exit(EXIT_SETTINGS)
    healthy = is_healthy(path)
    if as_json:
        click.echo(json.dumps({"healthy": healthy}))
    else:
        click.echo("connected" if healthy else "not connected")
    sys.exit(0 if healthy else 1)
