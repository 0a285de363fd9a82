"""`iop-edge serve`: run the edge until it is told to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from iop_edge.cli.config_files import (
    EXIT_INVALID,
    EXIT_USAGE,
    config_option,
    config_paths,
    echo,
    show_problems,
)
from iop_edge.config.problems import ConfigInvalid
from iop_edge.runtime.sources import SourceMissing

EXIT_PORT_TAKEN = 1


@click.command()
@config_option
def serve(config_files: tuple[Path, ...]) -> None:
    """Run the edge until SIGTERM, then drain it. SIGHUP applies the files anew.

    \b
    Exit status
      0  ended by SIGTERM, after the drain
      1  the config is invalid, an address is taken, or usage.file cannot be written
      2  wrong usage, or a file is not there
      7  ended at once by a second signal
    """
    # The library writes a line of its own, in another format, for each peer that fails to shake
    # hands: anyone who scans ports would fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    import uvloop

    from iop_edge import app
    from iop_edge.runtime.usage import UsageFileError
    from iop_edge.serve.http.address import ListenError

    try:
        uvloop.run(app.serve(config_paths(config_files)))
    except ConfigInvalid as invalid:
        show_problems(invalid.problems, (), omitted=invalid.omitted, err=True)
        sys.exit(EXIT_USAGE if isinstance(invalid, SourceMissing) else EXIT_INVALID)
    except (ListenError, UsageFileError) as error:
        echo(f"iop-edge: {error}", err=True)
        sys.exit(EXIT_PORT_TAKEN)
