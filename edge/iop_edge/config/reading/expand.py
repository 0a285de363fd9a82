"""`${NAME}` and `${NAME:-default}` in values, from the environment of the edge (CFG-2).

A scalar that is unquoted and one whole reference takes its type after expansion; all others stay
text. Secret fields are not expanded at all: a `${…}` in one is as wrong as a literal, and is left
for the check that says what to write instead. `$${` stands for a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from iop_edge.config.reading.secret_paths import is_in_reference, is_secret
from iop_edge.config.yaml12.aliases import Reference
from iop_edge.config.yaml12.places import Places
from iop_edge.config.yaml12.scalars import Scalar
from iop_edge.config.yaml12.tree import resolve_or_text

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")


class ExpansionFailed(Exception):
    """A reference that leads nowhere. Holds a code and a sentence, never a value."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def expand(reference: Reference, environment: Mapping[str, str], places: Places) -> Scalar:
    """Put the expanded value in the reference's place and return it. Raises ExpansionFailed."""
    if is_secret(reference.steps) and not is_in_reference(reference.steps):
        return reference.text
    mark = places.mark_at(reference.container, reference.step)
    if mark is not None:
        places.expanded.add(mark)
    text = reference.text
    whole = _REFERENCE.fullmatch(text)
    expanded = _REFERENCE.sub(lambda found: _value(found, environment), text)
    value: Scalar = expanded
    if whole is not None and whole[1] is not None and reference.is_plain:
        value = resolve_or_text(expanded, None)
    reference.container[reference.step] = value
    return value


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found[0] == "$${":
        return "${"
    name, default = found[1], found[2]
    if name is None:
        raise ExpansionFailed(
            "bad_reference",
            "a reference is written `${NAME}` or `${NAME:-default}` (a literal `${` as `$${`)",
        )
    value = environment.get(name)
    if default is not None and "${" in default:
        raise ExpansionFailed("bad_reference", "a default holds no reference of its own")
    if default is not None and not value:
        return default
    if value is None:
        raise ExpansionFailed(
            "unset_variable",
            f"the environment variable {name} is not set; set it, or write `${{{name}:-default}}`",
        )
    if not _is_text(value):
        raise ExpansionFailed(
            "bad_variable",
            f"the environment variable {name} holds a control character, or is no UTF-8 text",
        )
    return value


def _is_text(value: str) -> bool:
    return (value.isascii() and value.isprintable()) or not any(
        "\ud800" <= character <= "\udfff" or not (character.isprintable() or character.isspace())
        for character in value
    )
