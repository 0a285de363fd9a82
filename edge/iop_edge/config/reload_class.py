"""When a changed field may take effect. Declared once, at the field (REF-6).

A field of the effective config carries its class in its annotation:
`Annotated[int, Reload.LIVE]`. A field without a mark of its own takes the nearest enclosing
one. Nothing else in the system lists which paths are live and which are not.
"""

from __future__ import annotations

import enum


class Reload(enum.Enum):
    """The refresh class of a config path."""

    LIVE = "live"
    """An apply puts the new value into effect at once (REF-3)."""

    RESTART = "restart"
    """The edge must be restarted; an apply that holds such a change applies nothing (REF-4)."""


class Derived(enum.Enum):
    """Beside the class, where a field is worked out from other fields of the effective config.

    Nobody writes such a field, and it never changes alone, so a diff leaves it out: the change is
    reported at what it is derived from.
    """

    DERIVED = "derived"
