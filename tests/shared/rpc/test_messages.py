from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.rpc.codes import RpcError, StatusCode
from iop_shared.rpc.messages import PREFIX_BYTES, MessageReader, prefixed

MAX_BYTES = 1000
MESSAGES = st.lists(st.binary(max_size=MAX_BYTES), max_size=6)


@given(MESSAGES, st.lists(st.integers(0, 10_000), max_size=30))
def test_messages_come_out_whole_however_their_bytes_are_cut(
    sent: list[bytes], cuts: list[int]
) -> None:
    raw = b"".join(map(prefixed, sent))
    bounds = [0, *sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]
    reader = MessageReader(MAX_BYTES)
    heard = []
    for start, end in pairwise(bounds):
        heard += reader.feed(raw[start:end])
        assert reader.held_bytes <= MAX_BYTES + PREFIX_BYTES
    assert heard == sent
    assert reader.held_bytes == 0


@given(MESSAGES)
def test_messages_come_out_whole_byte_by_byte(sent: list[bytes]) -> None:
    reader = MessageReader(MAX_BYTES)
    raw = b"".join(map(prefixed, sent))
    assert [message for byte in raw for message in reader.feed(bytes([byte]))] == sent


@given(st.binary(max_size=MAX_BYTES + 20), st.binary(max_size=20))
def test_the_short_way_takes_exactly_what_is_one_whole_message(raw: bytes, begun: bytes) -> None:
    reader = MessageReader(MAX_BYTES)
    assert reader.whole(prefixed(raw)) == (raw if len(raw) <= MAX_BYTES else None)
    assert reader.whole(prefixed(raw) + b"x") is None
    assert reader.whole(prefixed(raw)[:-1] if raw else b"\0\0\0\0") is None
    assert reader.whole(b"\1" + prefixed(raw)[1:]) is None
    list(reader.feed(prefixed(begun)[:4]))
    assert reader.whole(prefixed(raw)) is None


def test_a_message_too_long_is_refused_by_its_first_bytes() -> None:
    reader = MessageReader(MAX_BYTES)
    reading = reader.feed(prefixed(b"good") + b"\0\xff\xff\xff\xff")
    assert next(reading) == b"good"
    with pytest.raises(RpcError, match="4294967295 bytes; the limit is 1000") as caught:
        next(reading)
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert reader.held_bytes == 0


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compressed_message_is_refused(flag: int) -> None:
    with pytest.raises(RpcError) as caught:
        list(MessageReader(MAX_BYTES).feed(bytes([flag]) + prefixed(b"abc")[1:]))
    assert caught.value.code is StatusCode.UNIMPLEMENTED


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_any_bytes_are_messages_or_an_error_and_never_held_above_the_limit(
    pieces: list[bytes],
) -> None:
    reader = MessageReader(MAX_BYTES)
    with suppress(RpcError):
        for piece in pieces:
            list(reader.feed(piece))
            assert reader.held_bytes < MAX_BYTES + PREFIX_BYTES
