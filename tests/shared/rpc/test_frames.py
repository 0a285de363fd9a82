from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, GoAwayFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.rpc import frames
from iop_shared.rpc.frames import Broken, Frame, FrameReader

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, frames.MAX_WINDOW),
        st.binary(max_size=300),
    ),
    max_size=8,
)


def serialized(frame: Frame) -> bytes:
    kind, flags, stream_id, content = frame
    return frames.head(kind, flags, stream_id, len(content)) + content


def in_pieces(raw: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]
    return [raw[start:end] for start, end in pairwise(bounds)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30))
def test_frames_come_out_whole_however_their_bytes_are_cut(
    sent: list[Frame], cuts: list[int]
) -> None:
    reader = FrameReader()
    raw = b"".join(map(serialized, sent))
    heard = [frame for piece in in_pieces(raw, cuts) for frame in reader.feed(piece)]
    assert heard == sent
    assert reader.held_bytes == 0


@given(FRAMES)
def test_frames_come_out_whole_byte_by_byte(sent: list[Frame]) -> None:
    reader = FrameReader()
    raw = b"".join(map(serialized, sent))
    assert [frame for byte in raw for frame in reader.feed(bytes([byte]))] == sent


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_frames_or_a_broken_rule_and_never_held_above_the_limit(
    pieces: list[bytes],
) -> None:
    reader = FrameReader()
    with suppress(Broken):
        for piece in pieces:
            list(reader.feed(piece))
            assert reader.held_bytes <= frames.HEAD_BYTES + frames.MAX_FRAME_BYTES


def test_a_frame_of_the_longest_length_is_taken_and_one_byte_more_is_refused_by_its_head() -> None:
    longest = serialized((frames.DATA, 0, 1, bytes(frames.MAX_FRAME_BYTES)))
    assert len(list(FrameReader().feed(longest))) == 1
    with pytest.raises(Broken, match="65537") as caught:
        list(FrameReader().feed(frames.head(frames.DATA, 0, 1, frames.MAX_FRAME_BYTES + 1)))
    assert caught.value.code is ErrorCodes.FRAME_SIZE_ERROR


def test_frames_before_one_that_is_too_long_are_still_heard() -> None:
    good = serialized((frames.DATA, 0, 1, b"x"))
    reading = FrameReader().feed(good + b"\xff" * 9)
    assert next(reading) == (frames.DATA, 0, 1, b"x")
    with pytest.raises(Broken):
        next(reading)


def test_the_reserved_bit_of_a_stream_is_not_looked_at() -> None:
    raw = frames.head(frames.PING, 0, 0x8000_0007, 0)
    assert list(FrameReader().feed(raw)) == [(frames.PING, 0, 7, b"")]


@given(st.integers(0, frames.MAX_WINDOW), st.integers(1, frames.MAX_WINDOW))
def test_credit_is_written_as_others_write_it(stream_id: int, increment: int) -> None:
    frame = WindowUpdateFrame(stream_id, increment)
    assert frames.window_update(stream_id, increment) == frame.serialize()
    assert frames.increment_of(frame.serialize_body()) == increment


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", ErrorCodes.FRAME_SIZE_ERROR),
        (b"\0\0\1", ErrorCodes.FRAME_SIZE_ERROR),
        (b"\0\0\0\1\0", ErrorCodes.FRAME_SIZE_ERROR),
        (b"\0\0\0\0", ErrorCodes.PROTOCOL_ERROR),
        (b"\x80\0\0\0", ErrorCodes.PROTOCOL_ERROR),
    ],
)
def test_credit_of_nothing_is_a_broken_rule(content: bytes, code: ErrorCodes) -> None:
    with pytest.raises(Broken) as caught:
        frames.increment_of(content)
    assert caught.value.code is code


@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding_is_taken_off(content: bytes, length: int) -> None:
    frame = DataFrame(1, content, pad_length=length, flags=["PADDED"])
    assert frames.without_padding(frame.serialize_body()) == content


@pytest.mark.parametrize("content", [b"", b"\1", b"\5abcd", b"\xff"])
def test_padding_longer_than_its_frame_is_a_broken_rule(content: bytes) -> None:
    with pytest.raises(Broken):
        frames.without_padding(content)


def settings(*pairs: tuple[int, int]) -> bytes:
    return b"".join(code.to_bytes(2, "big") + value.to_bytes(4, "big") for code, value in pairs)


def test_settings_that_nobody_knows_are_left_out_and_a_table_is_never_larger_than_ours() -> None:
    said = settings((0, 1), (1, 2**32 - 1), (4, 70_000), (8, 1), (0xFAFA, 9), (1, 100), (6, 5))
    kept = settings((1, frames.MAX_TABLE_BYTES), (4, 70_000), (1, 100), (6, 5))
    assert frames.known_settings(said) == kept


def test_settings_as_others_write_them_are_kept() -> None:
    body = SettingsFrame(0, settings={2: 0, 3: 100, 4: 65_536, 5: 16_384}).serialize_body()
    assert frames.known_settings(body) == body


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (bytes(5), ErrorCodes.FRAME_SIZE_ERROR),
        (bytes(7), ErrorCodes.FRAME_SIZE_ERROR),
        (bytes(6 * (frames.MAX_SETTINGS + 1)), ErrorCodes.ENHANCE_YOUR_CALM),
    ],
)
def test_settings_of_no_form_are_a_broken_rule(content: bytes, code: ErrorCodes) -> None:
    with pytest.raises(Broken) as caught:
        frames.known_settings(content)
    assert caught.value.code is code


def test_a_goodbye_tells_the_last_call_and_the_error() -> None:
    frame = GoAwayFrame(0, last_stream_id=7, error_code=2, additional_data=b"why")
    assert frames.goodbye(frame.serialize_body()) == (7, 2)
    with pytest.raises(Broken):
        frames.goodbye(bytes(7))
