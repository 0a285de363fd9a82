"""A plain tree to document structs, with every problem of every entry (CFG-4).

A valid entry is one call of the decoder. The decoder stops at its first error and echoes values,
so an entry that it refuses is walked again here, key by key, against the very types it was given;
nothing the decoder said is passed on. What cannot be used is replaced by a blank, so that the
checks that follow still see the rest.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from iop_edge.config.document import SecretDocument
from iop_edge.config.likely import Likely
from iop_edge.config.reading.complaints import describe, kind_of
from iop_edge.config.reading.secret_paths import is_in_reference, is_secret
from iop_edge.config.reading.vocabulary import homes_of
from iop_edge.config.report import Report
from iop_edge.config.yaml12.places import Steps

T = TypeVar("T", bound=Struct)


class _Blank:
    """In the place of a value that cannot be used."""


_BLANK = _Blank()


class Decoder:
    """Decodes one candidate's tree and reports what is wrong with it."""

    def __init__(self, report: Report, likely: Likely) -> None:
        self._report = report
        self._likely = likely

    def struct(self, value: Any, cls: type[T], steps: Steps) -> T:
        """An instance of `cls`, with blanks where the value has problems."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError:
            return self.pieces(value, cls, steps)

    def pieces(self, value: Any, cls: type[T], steps: Steps) -> T:
        """Like `struct`, one field after the other, so that no single step takes long."""
        if not isinstance(value, dict):
            if is_secret(steps):
                self._secret_literal(steps)
            else:
                self._report.error(
                    "not_a_mapping", f"a mapping must stand here; {kind_of(value)}", steps
                )
            return _blank_struct(cls)
        fields = _fields(cls)
        meant = self._unknown_keys(value, cls, fields, steps)
        decoded: dict[str, Any] = {}
        for name, field in fields.items():
            if name in value:
                result = self._value(value[name], field.type, (*steps, name))
                if result is not _BLANK:
                    decoded[name] = result
                elif cls is SecretDocument:
                    self._report.close(steps)
            elif field.required and name not in meant:
                self._missing(value, name, field, steps)
        return _built(cls, decoded)

    def _secret_literal(self, steps: Steps) -> None:
        self._report.error("secret_literal", secret_advice(steps), steps)
        self._report.close(steps)

    def _unknown_keys(
        self, value: dict[str, Any], cls: type[Struct], fields: Any, steps: Steps
    ) -> set[str]:
        """Reports them, and returns the keys that were probably meant: they are not missing too."""
        meant: set[str] = set()
        for key in value:
            if key in fields or self._report.is_closed((*steps, key)):
                continue
            refused = getattr(cls, "REFUSED", {}).get(key)
            if refused is not None:
                self._report.error("unknown_key", refused, (*steps, key), on_key=True)
                continue
            absent = [name for name in fields if name not in value]
            likely = self._likely.nearest(key, absent) or self._likely.nearest(key, fields)
            hint = f"; did you mean `{likely}`?" if likely is not None else ""
            if cls is SecretDocument:
                # The key itself may be a secret that somebody wrote between braces.
                self._report.error(
                    "unknown_key", f"a reference to a secret has no such key{hint}", steps
                )
                self._report.close(steps)
            else:
                if likely is not None:
                    meant.add(likely)
                hint = hint or _elsewhere(key)
                self._report.error(
                    "unknown_key",
                    f"`{_short(key)}` is no key that belongs here{hint}",
                    (*steps, key),
                    on_key=True,
                )
        return meant

    def _missing(
        self, value: dict[str, Any], name: str, field: inspect.Field, steps: Steps
    ) -> None:
        at = (*steps, name)
        wanted = f"; write {_secret_forms(at)}" if is_secret(at) else ""
        if self._report.places.mark_at(value, name) is None:
            self._report.error("missing_key", f"`{name}` is needed here{wanted}", steps)
            return
        if isinstance(_unwrapped(field.type)[0], inspect.StrType):
            wanted = "; quote it if it is meant as text"
        self._report.error(
            "missing_key", f"`{name}` is needed, and null counts as left out{wanted}", at
        )
        self._report.close(at)

    def _value(self, value: Any, node: inspect.Type, steps: Steps) -> Any:
        """The decoded value, or `_BLANK` after a report."""
        node, wants = _unwrapped(node)
        if isinstance(node, inspect.UnionType):
            return self._union(value, node, wants, steps)
        if isinstance(node, inspect.StructType):
            return self.struct(value, node.cls, steps)
        if isinstance(node, inspect.ListType):
            return self._list(value, node, steps)
        if isinstance(node, inspect.DictType):
            return self._dict(value, node, steps)
        complaint = describe(value, node, wants, self._likely, echo=not self._is_expanded(steps))
        if complaint is None:
            return value
        self._report.error(complaint.code, complaint.message, steps)
        return _BLANK

    def _union(self, value: Any, node: inspect.UnionType, wants: str | None, steps: Steps) -> Any:
        variants = [one for one in node.types if not isinstance(one, inspect.NoneType)]
        if value is None and len(variants) < len(node.types):
            return None
        if is_secret(steps) and not is_in_reference(steps) and not isinstance(value, dict):
            self._secret_literal(steps)
            return _BLANK
        if len(variants) == 1:
            return self._value(value, variants[0], steps)
        for variant in variants:
            bare, _ = _unwrapped(variant)
            if isinstance(bare, inspect.StructType) == isinstance(value, dict):
                return self._value(value, variant, steps)
        return self._value(value, variants[0], steps)

    def _list(self, value: Any, node: inspect.ListType, steps: Steps) -> Any:
        if not isinstance(value, list):
            self._report.error("not_a_list", f"a list must stand here; {kind_of(value)}", steps)
            return _BLANK
        if node.min_length is not None and len(value) < node.min_length:
            self._report.error("empty_list", "at least one entry is needed here", steps)
            return _BLANK
        item, _ = _unwrapped(node.item_type)
        decoded = []
        for index, entry in enumerate(value):
            if isinstance(item, inspect.StructType):
                decoded.append(self.struct(entry, item.cls, (*steps, index)))
            else:
                result = self._value(entry, node.item_type, (*steps, index))
                if result is not _BLANK:
                    decoded.append(result)
        return decoded

    def _dict(self, value: Any, node: inspect.DictType, steps: Steps) -> Any:
        if not isinstance(value, dict):
            self._report.error(
                "not_a_mapping", f"a mapping must stand here; {kind_of(value)}", steps
            )
            return _BLANK
        key_type, wants = _unwrapped(node.key_type)
        decoded = {}
        for key, entry in value.items():
            complaint = describe(key, key_type, wants, self._likely, echo=True)
            if complaint is not None:
                self._report.error(complaint.code, complaint.message, (*steps, key), on_key=True)
            result = self._value(entry, node.value_type, (*steps, key))
            if result is not _BLANK and complaint is None:
                decoded[key] = result
        return decoded

    def _is_expanded(self, steps: Steps) -> bool:
        return self._report.places.is_expanded(self._report.root, steps)


def secret_advice(steps: Steps) -> str:
    """What to write in the place of a literal secret at `steps`."""
    return (
        "a secret is never written into a config, nor expanded into it; "
        f"write {_secret_forms(steps)}"
    )


def _secret_forms(steps: Steps) -> str:
    if steps[-1] == "auth":
        return "`value: {env: NAME}`, or `file`, `node_env` or `node_file` in place of `env`"
    if steps[-1] == "token":
        return "{env: NAME}, {file: PATH} or {sha256: HEX}"
    return "{env: NAME}, {file: PATH}, {node_env: NAME} or {node_file: PATH}"


def _unwrapped(node: inspect.Type) -> tuple[inspect.Type, str | None]:
    wants = None
    while isinstance(node, inspect.Metadata):
        wants = wants or (node.extra or {}).get("wants")
        node = node.type
    return node, wants


@cache
def _fields(cls: type[Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def _built(cls: type[T], decoded: dict[str, Any]) -> T:
    for name, field in _fields(cls).items():
        if field.required and name not in decoded:
            decoded[name] = _blank(field.type)
    return cls(**decoded)


def _blank_struct(cls: type[T]) -> T:
    return _built(cls, {})


def _blank(node: inspect.Type) -> Any:
    bare, _ = _unwrapped(node)
    if isinstance(bare, inspect.StructType):
        return _blank_struct(bare.cls)
    if isinstance(bare, inspect.IntType):
        return 0
    return [] if isinstance(bare, inspect.ListType) else ""


def _short(key: str) -> str:
    return key if len(key) <= 64 else f"{key[:64]}…"


def _elsewhere(key: str) -> str:
    homes = homes_of(key)
    return f"; it belongs to {' or '.join(f'`{home}`' for home in homes)}" if homes else ""
