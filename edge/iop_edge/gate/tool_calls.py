"""Whether the tool calls of one answer can be used: they name declared tools, and their arguments
are JSON objects that fit the declared schemas (GATE-7).

Decides that at the answer's end, from the fragments as they came. It must never tell a value out
of the arguments: a fault knows names that the caller itself has declared, indices, and keywords.

A call of a tool that nobody declared is a fault too: its caller has nothing to run by that name,
and no declared schema that the arguments could fit. Where the caller declared no tool at all, or
one whose name is not known, whatever else is called is run by somebody else, and is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from iop_edge.gate.evidence import Said
from iop_edge.gate.schema import MAX_COST, Unjudgeable, tool_schema

MAX_ARGUMENT_CHARACTERS = 1_048_576
"""Of all calls of an answer together. Beyond it nothing is judged, and nothing kept."""

_CALL_CHARACTERS = 256
"""What a call counts for beside its arguments: it takes room, however little it says."""

_NAMELESS = ""

FaultKind = Literal["not_json", "not_fitting", "unknown_tool"]


class ToolFault(Struct, frozen=True, kw_only=True):
    """The first call that cannot be used.

    `index` is the call's in the answer. `name` is a declared one, and empty for an unknown tool:
    then it would be the model's own text. `place` and `rule` are those of `schema.Misfit`.
    """

    kind: FaultKind
    index: int
    name: str = ""
    place: str = ""
    rule: str = ""


class ToolCalls:
    """The tool calls of one answer.

    `schemas` maps the declared tools to the JSON Schemas of their arguments. A tool whose schema
    is empty, cannot be read or cannot be judged within bounds is known, and not judged. The empty
    name stands for tools whose names are not known: then no call is of an unknown tool.
    """

    def __init__(self, schemas: Mapping[str, bytes]) -> None:
        self._schemas = schemas
        self.count = 0
        """Calls that were begun, as far as they were counted: until nothing is kept any more."""
        self._names: dict[int, str] = {}
        self._fragments: dict[int, list[str]] = {}
        self._characters = 0

    def __repr__(self) -> str:
        return f"ToolCalls({self.count} calls, {self._characters} characters)"

    def add(self, said: Said) -> None:
        """Take in what an event says. Only fragments of tool calls are kept."""
        if said.kind != "tool_call" or self._characters > MAX_ARGUMENT_CHARACTERS:
            return
        fragments = self._fragments.get(said.call_index)
        if fragments is None:
            fragments = self._fragments[said.call_index] = []
            self.count += 1
            self._characters += _CALL_CHARACTERS
        if said.name and said.call_index not in self._names:
            self._names[said.call_index] = said.name
            self._characters += len(said.name)
        self._characters += len(said.text)
        if self._characters > MAX_ARGUMENT_CHARACTERS:
            self._fragments.clear()
            self._names.clear()
        elif said.text:
            fragments.append(said.text)

    def verdict(self) -> ToolFault | None:
        """The fault of the first call, by index, that has one. None where all can be used, or
        cannot be judged."""
        if not self._schemas or self._characters > MAX_ARGUMENT_CHARACTERS:
            return None
        left = MAX_COST
        for index in sorted(self._fragments):
            name = self._names.get(index, "")
            raw = self._schemas.get(name, self._schemas.get(_NAMELESS))
            if raw is None:
                return ToolFault(kind="unknown_tool", index=index)
            if not raw:
                continue
            try:
                text = "".join(self._fragments[index])
                arguments = _arguments(text)
                if arguments is None:
                    return ToolFault(kind="not_json", index=index, name=name)
                schema = tool_schema(raw)
                if schema is None:
                    continue
                cost = schema.cost(arguments, len(text))
                left -= cost.evaluations
                if left < 0:
                    return None
                misfit = schema.misfit(arguments, cost)
            except Unjudgeable:
                continue
            if misfit is not None:
                place, rule = misfit
                return ToolFault(kind="not_fitting", index=index, name=name, place=place, rule=rule)
        return None


def repair_directive(fault: ToolFault) -> str:
    """What a schema repair tells the model: one fixed sentence with the tool's name, the place
    and the rule."""
    again = "Call the tool again, with arguments that are one JSON object and fit its schema."
    match fault.kind:
        case "unknown_tool":
            return (
                "Your last answer called a tool that was not declared. Answer again, and call"
                " declared tools only, by their exact names."
            )
        case "not_json":
            return f'The arguments of your call of "{fault.name}" were not a JSON object. {again}'
        case "not_fitting":
            where = f' at "{fault.place}"' if fault.place else ""
            by = f' by the rule "{fault.rule}"' if fault.rule else ""
            return (
                f'The arguments of your call of "{fault.name}" did not fit its schema{where}{by}.'
                f" {again}"
            )


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments; None where they are no JSON object. Many servers send nothing at all for a
    call without arguments. Raises Unjudgeable for JSON that is beyond what can be read."""
    if not text or text.isspace():
        return {}
    try:
        decoded = msgspec.json.decode(text)
    except (RecursionError, msgspec.ValidationError) as beyond:
        raise Unjudgeable("nested too deep, or a number too large") from beyond
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
