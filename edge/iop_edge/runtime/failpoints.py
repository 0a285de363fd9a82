"""Named places at which a test may end or fail this process (`IOP_FAILPOINTS`).

`IOP_FAILPOINTS=apply.before_swap=kill,apply.after_validate=raise`: at the named place the process
is killed as if by SIGKILL, or the place raises. Read once, when the module is imported; without
the variable a failpoint is one look into an empty map.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Literal, cast, get_args

Action = Literal["kill", "raise"]


class FailpointReached(Exception):
    """Raised at a failpoint that is set to `raise`. Names the place."""


def parse(text: str) -> Mapping[str, Action]:
    """`place=action` pairs, separated by commas. Raises ValueError that names the wrong one."""
    actions: dict[str, Action] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        place, _, action = pair.partition("=")
        if not place or action not in get_args(Action):
            raise ValueError(f"IOP_FAILPOINTS: {pair!r} is not PLACE=kill or PLACE=raise")
        actions[place] = cast(Action, action)
    return actions


_ACTIONS = parse(os.environ.get("IOP_FAILPOINTS", ""))


def reach(place: str, actions: Mapping[str, Action] = _ACTIONS) -> None:
    """Do what is asked for at this place; nothing where nothing is."""
    match actions.get(place):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise FailpointReached(place)
        case None:
            pass
