"""`iop-edge health`: whether the edge that runs here is ready, for container health checks."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from iop_edge.cli.admin_address import admin_address, admin_options
from iop_edge.cli.admin_client import AdminClient, NoAnswer, Unreachable


@click.command()
@admin_options
def health(admin: str | None, config_files: tuple[Any, ...], as_json: bool) -> None:
    """Exit 0 when the running edge is ready, and 1 when it is not or does not answer."""
    try:
        document = AdminClient(admin_address(admin, config_files)).get("/readyz")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (Unreachable, NoAnswer) as error:
        is_ready, why = False, str(error)
    else:
        # The shapes are not imported here: this is run every few seconds.
        match document:
            case {"ready": True}:
                is_ready, why = True, "ready"
            case {"ready": False, "waiting_for": [*missing]}:
                is_ready, why = False, f"not ready: {', '.join(map(str, missing))}"
            case _:
                is_ready, why = False, str(NoAnswer())
    click.echo(json.dumps({"ready": is_ready, "detail": why}) if as_json else why)
    sys.exit(0 if is_ready else 1)
