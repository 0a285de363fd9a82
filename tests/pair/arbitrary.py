"""Any message of the wire, well-formed and otherwise meaningless, as Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

_UNSIGNED = st.sampled_from([0, 1, 2, 3, 64, 5_000, 16_385, 70_000, 2**31, 2**32 - 1])
_TEXT = st.sampled_from(["", "p1", "unavailable", "node_lost", "draining", "no such code", "강"])
_BYTES = st.sampled_from([b"", b"x", b"y" * 300, b"z" * 20_000, b"w" * 70_000])
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _UNSIGNED,
    FieldDescriptor.CPPTYPE_UINT64: _UNSIGNED | st.just(2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}
_DEEPEST = 6


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Any:
    """A message of this type. Of a oneof, one member; of the rest, some."""
    made: Message = message_factory.GetMessageClass(descriptor)()
    in_oneof = {f.name for o in descriptor.oneofs for f in o.fields if len(o.fields) > 1}
    chosen = {
        draw(st.sampled_from([f.name for f in oneof.fields]))
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    }
    for field in descriptor.fields:
        if field.name in in_oneof:
            if field.name not in chosen:
                continue
        elif depth and not draw(st.booleans()):
            continue
        _fill(draw, made, field, depth)
    return made


def _fill(draw: st.DrawFn, made: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None:
        if depth >= _DEEPEST or field.message_type.GetOptions().map_entry:
            return
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                value = draw(messages(field.message_type, depth + 1))
                getattr(made, field.name).add().CopyFrom(value)
            return
        getattr(made, field.name).CopyFrom(draw(messages(field.message_type, depth + 1)))
        return
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        scalar = _BYTES if field.type == FieldDescriptor.TYPE_BYTES else _TEXT
    elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return
    else:
        scalar = _SCALARS[field.cpp_type]
    if field.is_repeated:
        getattr(made, field.name).extend(draw(st.lists(scalar, max_size=2)))
    else:
        setattr(made, field.name, draw(scalar))
