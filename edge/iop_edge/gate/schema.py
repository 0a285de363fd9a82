"""One declared schema of a tool's arguments: whether they fit, and where not.

Decides that for any schema a caller may send, within bounds that hold whatever the schema says:
callers are not trusted, and the judge runs on the loop that serves everybody. It must never reach
for the network or a file, and never tell a value out of the arguments.

What makes the bounds hold:

- References are followed inside the document alone; the engine is told to fetch nothing.
- Patterns run on an engine that is linear in the text, and with a bound on their compiled size.
- A schema can be small and still take for ever: `anyOf` of two references to an `anyOf` of two
  references, and so on. So before the engine sees anything, the evaluations that it can come to
  are counted on the schema's graph, for arguments of this depth. Too many: not judged.
- An explanation by the engine copies values once per alternative. It is asked for one only where
  the count is small; else it is only said that the arguments do not fit.

What cannot be judged is no fault of the model's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, TypeGuard

import msgspec
from jsonschema_rs import RegexOptions, ValidationError, ValidationErrorKind, Validator
from jsonschema_rs import validator_for as _validator_for

MAX_SCHEMA_BYTES = 65_536
MAX_COST = 2_000_000
"""Evaluations that one judgement may come to: some tens of milliseconds at worst."""

_MAX_SUBSCHEMAS = 2_000
_MAX_PATTERNS = 64
_MAX_PATTERN_BYTES = 65_536
"""Of one compiled pattern."""
_MAX_CACHED = 256
_MAX_CACHED_BYTES = 2_097_152
"""Of what the cache holds, as written; a pattern counts for much more than it is long."""
_BYTES_PER_PATTERN = 8_192
_MAX_DEPTH = 32
_MAX_VALUES = 100_000
_MAX_EXPLAINED_COST = 20_000
_MAX_COPIED_CHARACTERS = 8_000_000
_CHARACTERS_PER_EVALUATION = 8
"""What a linear pattern reads in about the time of one evaluation."""
_COUNTLESS = 10**12

_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)

_SAME_PLACE = ("not", "if", "then", "else")
_SAME_PLACE_EACH = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_BY_NAME = ("dependentSchemas", "dependencies")
_ONE_OF_THESE_BELOW = ("additionalProperties", "items", "additionalItems")
_BESIDE_THEM_BELOW = ("propertyNames", "contains")
_ENUMERATED = ("enum", "const", "required", "dependentRequired", "type")
_APPLICATORS: frozenset[str | int] = frozenset(
    (*_SAME_PLACE, *_SAME_PLACE_EACH, *_SAME_PLACE_BY_NAME, *_ONE_OF_THESE_BELOW,
     *_BESIDE_THEM_BELOW, "properties", "patternProperties", "prefixItems")
)  # fmt: skip
_NOT_FOLLOWED = (
    "$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
"""Their cost cannot be read off the graph: the engine itself takes exponential time for some."""


class Misfit(NamedTuple):
    """Where arguments do not fit, and by which keyword.

    `place` is a JSON pointer made of property names that the schema declares, indices, and `*`
    for any other name. Of a property that is missing it is the place where it should stand. Both
    are empty where only the misfit is known.
    """

    place: str = ""
    rule: str = ""


class Cost(NamedTuple):
    """What a judgement takes at most: evaluations of subschemas, and characters that an
    explanation copies."""

    evaluations: int
    copied_characters: int


class Unjudgeable(Exception):
    """The schema, or these arguments with it, cannot be judged within the bounds."""


class ToolSchema:
    """One compiled schema. Raises Unjudgeable for one that cannot be."""

    def __init__(self, raw: bytes) -> None:
        document = _decoded(raw)
        self._graph = _Graph(document)
        self.kept_bytes = len(raw) + _BYTES_PER_PATTERN * self._graph.pattern_count
        try:
            self._validator: Validator = _validator_for(
                document,
                mask="*",
                offline=True,
                pattern_options=RegexOptions(
                    size_limit=_MAX_PATTERN_BYTES, dfa_size_limit=_MAX_PATTERN_BYTES
                ),
                validate_formats=False,
            )
        except (ValueError, RecursionError) as refusal:
            # Its text quotes the caller's schema.
            raise Unjudgeable("the engine takes no such schema") from refusal

    def cost(self, arguments: Any, length: int) -> Cost:
        """What judging this takes; `length` is that of its text. Raises Unjudgeable where that is
        more than MAX_COST."""
        values, depth = _measured(arguments)
        if values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise Unjudgeable("there are too many values, or they are nested too deep")
        units = values
        if self._graph.pattern_count:
            units += length // _CHARACTERS_PER_EVALUATION
        weight = self._graph.weight(depth)
        if units * weight > MAX_COST:
            raise Unjudgeable("judging this would take too long")
        return Cost(units * weight, length * weight)

    def misfit(self, arguments: Any, cost: Cost) -> Misfit | None:
        """None where the arguments fit. `cost` is theirs."""
        try:
            if self._validator.is_valid(arguments):
                return None
            if self._graph.has_alternatives and (
                cost.evaluations > _MAX_EXPLAINED_COST
                or cost.copied_characters > _MAX_COPIED_CHARACTERS
            ):
                return Misfit()
            self._validator.validate(arguments)
        except ValidationError as error:
            return _told(error, self._graph.names)
        except ValueError as refusal:
            raise Unjudgeable("the engine takes no such arguments") from refusal
        raise Unjudgeable("the engine contradicts itself")


class SchemaCache:
    """The schemas that were used last, compiled; bounded in number and in size."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, ToolSchema | None] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, raw: bytes) -> ToolSchema | None:
        """The compiled schema; None where it cannot be judged."""
        if not 0 < len(raw) <= MAX_SCHEMA_BYTES:
            return None
        if raw in self._held:
            self._held.move_to_end(raw)
            return self._held[raw]
        try:
            schema = ToolSchema(raw)
        except Unjudgeable:
            schema = None
        self._held[raw] = schema
        self._bytes += _kept_bytes(raw, schema)
        while len(self._held) > _MAX_CACHED or self._bytes > _MAX_CACHED_BYTES:
            self._bytes -= _kept_bytes(*self._held.popitem(last=False))
        return schema


tool_schema = SchemaCache().get
"""The compiled schema, from the cache of the process; None where it cannot be judged."""


def _kept_bytes(raw: bytes, schema: ToolSchema | None) -> int:
    return len(raw) if schema is None else schema.kept_bytes


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as refusal:
        raise Unjudgeable("the schema is no JSON") from refusal
    if not _is_object(document):
        raise Unjudgeable("the schema is no object")
    dialect = document.get("$schema", _DRAFTS[0])
    if not isinstance(dialect, str) or dialect.removesuffix("#") not in _DRAFTS:
        raise Unjudgeable("the schema is of an unknown draft")
    return document


class _Node(NamedTuple):
    """One subschema, and which others it has evaluated: at the same place, and one level below.

    Of `one_of_below` only one can meet a value; all of `each_below` may.
    """

    own: int
    same_place: tuple[int, ...]
    one_of_below: tuple[int, ...]
    each_below: tuple[int, ...]


class _Graph:
    """The subschemas of a document as far as the root reaches, references followed."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.names: set[str] = set()
        self.pattern_count = 0
        self.has_alternatives = False
        self._document = document
        self._found: dict[int, int] = {}
        self._schemas: list[dict[str, Any]] = []
        self._index(document)
        nodes: list[_Node] = []
        # Reading one finds others.
        while len(nodes) < len(self._schemas):
            nodes.append(self._read(self._schemas[len(nodes)]))
        if self.pattern_count > _MAX_PATTERNS:
            raise Unjudgeable("the schema has too many patterns")
        self._nodes = nodes
        try:
            self._order = tuple(
                TopologicalSorter(
                    {number: node.same_place for number, node in enumerate(nodes)}
                ).static_order()
            )
        except CycleError as cycle:
            raise Unjudgeable("the schema applies itself at one place for ever") from cycle
        self._levels: list[list[int]] = []

    def weight(self, depth: int) -> int:
        """The most evaluations, of all subschemas together, at the places of one way down into
        arguments that are nested this deep."""
        levels = self._levels
        while len(levels) <= depth:
            level = self._next_level(levels[-1] if levels else [0] * len(self._nodes))
            if levels and level == levels[-1]:
                break
            levels.append(level)
        return levels[min(depth, len(levels) - 1)][0]

    def _next_level(self, below: Sequence[int]) -> list[int]:
        level = [0] * len(self._nodes)
        for number in self._order:
            own, same_place, one_of_below, each_below = self._nodes[number]
            weight = own + sum(level[other] for other in same_place)
            weight += max((below[other] for other in one_of_below), default=0)
            weight += sum(below[other] for other in each_below)
            level[number] = min(weight, _COUNTLESS)
        return level

    def _index(self, schema: object) -> int | None:
        """The number of a subschema; None for `true` and `false`, which cost nothing."""
        if isinstance(schema, bool):
            return None
        if not _is_object(schema):
            raise Unjudgeable("a subschema is neither an object nor a boolean")
        number = self._found.setdefault(id(schema), len(self._schemas))
        if number == len(self._schemas):
            if number == _MAX_SUBSCHEMAS:
                raise Unjudgeable("the schema has too many subschemas")
            self._schemas.append(schema)
        return number

    def _indexed(self, schemas: Iterable[object]) -> tuple[int, ...]:
        return tuple(number for one in schemas if (number := self._index(one)) is not None)

    def _read(self, schema: dict[str, Any]) -> _Node:
        if any(keyword in schema for keyword in _NOT_FOLLOWED):
            raise Unjudgeable("the schema has a keyword whose cost has no bound")
        if "$id" in schema and schema is not self._document:
            raise Unjudgeable("the schema has another inside it")
        properties = _object(schema.get("properties", {}))
        patterns = _object(schema.get("patternProperties", {}))
        required = schema.get("required", [])
        self.names.update(properties)
        self.names.update(one for one in _list(required) if isinstance(one, str))
        self.pattern_count += len(patterns) + ("pattern" in schema)
        self.has_alternatives |= "anyOf" in schema or "oneOf" in schema
        same = [schema[one] for one in _SAME_PLACE if one in schema]
        for keyword in _SAME_PLACE_EACH:
            same += _list(schema.get(keyword, []))
        for keyword in _SAME_PLACE_BY_NAME:
            named = _object(schema.get(keyword, {})).values()
            same += [one for one in named if not isinstance(one, list)]
        if "$ref" in schema:
            same.append(self._referred(schema["$ref"]))
        one_of = [*properties.values(), *_list(schema.get("prefixItems", []))]
        for keyword in _ONE_OF_THESE_BELOW:
            below = schema.get(keyword, True)
            one_of += below if isinstance(below, list) else [below]
        each = [*patterns.values(), *(schema[one] for one in _BESIDE_THEM_BELOW if one in schema)]
        own = 1 + len(properties) + len(patterns)
        own += sum(_measured(schema[one])[0] for one in _ENUMERATED if one in schema)
        return _Node(own, self._indexed(same), self._indexed(one_of), self._indexed(each))

    def _referred(self, reference: object) -> object:
        """What a reference leads to: a JSON pointer into this very document, and nothing else."""
        if not isinstance(reference, str) or not reference.startswith("#") or "%" in reference:
            raise Unjudgeable("the schema refers to something outside it")
        found: Any = self._document
        pointer = reference[1:]
        if pointer and not pointer.startswith("/"):
            raise Unjudgeable("the schema refers to an anchor")
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if _is_object(found) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                raise Unjudgeable("the schema refers to what is not in it")
        return found


def _told(error: ValidationError, names: set[str]) -> Misfit:
    steps = list(error.instance_path)
    rule = error.kind.name
    if isinstance(error.kind, ValidationErrorKind.Required):
        steps.append(error.kind.property)
    elif isinstance(error.kind, ValidationErrorKind.FalseSchema):
        # Nothing is allowed there, by the keyword that leads to it.
        above = [one for one in error.evaluation_path if one in _APPLICATORS]
        rule = str(above[-1]) if above else ""
    return Misfit("".join(f"/{_step(step, names)}" for step in steps), rule)


def _step(step: str | int, names: set[str]) -> str:
    if isinstance(step, int):
        return str(step)
    return step.replace("~", "~0").replace("/", "~1") if step in names else "*"


def _measured(value: object) -> tuple[int, int]:
    """How many values there are, names of properties among them, and how deep they are nested.
    Counts no further than the bounds."""
    values, depth = 0, 0
    level = [value]
    while level:
        values += len(level)
        if values > _MAX_VALUES or depth > _MAX_DEPTH:
            return values, depth
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
                values += len(one)
            elif isinstance(one, list):
                below += one
        level = below
        depth += bool(below)
    return values, depth


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _object(value: object) -> Mapping[str, Any]:
    if not _is_object(value):
        raise Unjudgeable("a keyword has no object where it needs one")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise Unjudgeable("a keyword has no list where it needs one")
    return value
