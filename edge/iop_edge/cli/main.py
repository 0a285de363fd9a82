"""`iop-edge`: the list of its commands, each imported from its own module when asked for."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from io import TextIOWrapper

import click

from iop_shared import early_signals

COMMANDS = {
    "serve": "iop_edge.cli.serve:serve",
    "config": "iop_edge.cli.config:config",
    "status": "iop_edge.cli.status:status",
    "health": "iop_edge.cli.health:health",
    "token": "iop_edge.cli.token:token",
    "node": "iop_edge.cli.node:node",
}


class LazyGroup(click.Group):
    """A group whose commands are `module:attribute`, imported at first use."""

    def __init__(self, *args: object, lazy: dict[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # click's own options
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        if cmd_name == "serve":
            # Before its module is loaded, which takes time, and until it is done.
            ctx.with_resource(early_signals.held(signal.SIGTERM, signal.SIGHUP))
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="iop", prog_name="iop-edge")
def main() -> None:
    """The edge of IOP: one endpoint in front of several machines with models on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that knows no line or dot gets an escape in its place, not a traceback.
            stream.reconfigure(errors="backslashreplace")
