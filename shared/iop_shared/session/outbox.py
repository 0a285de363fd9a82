"""What waits to be written on a session, and what makes the next batch.

The rule is "send what waits": the writer takes a batch whenever the transport can take one. An
idle session therefore sends every frame at once and alone, and a busy one shares the fixed cost of
a message among all that has gathered meanwhile. No timer, no linger.

Order:
 1. Control frames first, all of them, in their order (they are few and small). One that is large
    (a configuration) shares its batch with no other such and no data, so that what waits
    together never makes a message over the limit.
 2. Then data, lane by lane in rotation, about `QUANTUM_BYTES` of a lane per turn and never more
    than `BATCH_BYTES` in a batch, so that control never waits behind much data and no attempt
    starves another.
 3. Within a lane the order of queueing is kept: head, body, end.

Every byte in a lane is already covered by credit (`flow`), so a lane can always be sent. Adjacent
body pieces of a lane are joined into one chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

Frame = TypeVar("Frame")

BATCH_BYTES = 64 * 1024
QUANTUM_BYTES = 16 * 1024
"""A lane's turn; also the largest piece, and the largest body that a frame may carry inline."""

SMALL_PIECE_BYTES = 512
"""Where shorter ones wait by themselves, holding them takes a good deal more than they are."""

FRAME_WEIGHT_BYTES = 64
"""What a frame without a body counts for."""

CONTROL_LIMIT = 65_536
"""Control frames that may wait. They are not under credit, so a peer that makes more of them
necessary than it takes is not waited for any longer."""

_ROOM_BYTES = BATCH_BYTES - 2 * QUANTUM_BYTES
"""A turn begins only below this, since it may overrun its quantum by one piece."""


class Chunk(NamedTuple):
    """Body bytes of one attempt, ready to be put into a batch."""

    attempt_id: int
    content: bytes
    is_last: bool


class _End:
    """The mark behind the last byte of a body."""


_END = _End()

_Weighted = tuple[Frame, int]
"""A frame and its weight in bytes."""

_Lane = deque[bytes | bytearray | _End | _Weighted[Frame]]
"""What waits of one attempt. It is in rotation from when something waits until nothing does."""


class Outbox(Generic[Frame]):
    """Frames are opaque here; only their weight in bytes counts."""

    def __init__(self) -> None:
        self._control: deque[Frame] = deque()
        self._bulk: deque[Frame] = deque()
        self._lanes: dict[int, _Lane[Frame]] = {}
        self._ready: deque[tuple[int, _Lane[Frame]]] = deque()
        """The lanes in rotation, and those that were dropped since: these are empty."""

    def __bool__(self) -> bool:
        """Something waits."""
        return bool(self._lanes or self._control or self._bulk)

    def __repr__(self) -> str:
        return (
            f"Outbox(control={len(self._control)}, bulk={len(self._bulk)}, "
            f"lanes={len(self._lanes)}, ready={len(self._ready)})"
        )

    @property
    def is_flooded(self) -> bool:
        """As many control frames wait as may."""
        return len(self._control) >= CONTROL_LIMIT

    def control(self, frame: Frame) -> None:
        """Queue a frame that overtakes all data."""
        self._control.append(frame)

    def bulk(self, frame: Frame) -> None:
        """Queue a control frame that may be large. Among themselves these keep their order."""
        self._bulk.append(frame)

    def frame(self, attempt_id: int, frame: Frame, weight: int = FRAME_WEIGHT_BYTES) -> None:
        """Queue a frame of an attempt, behind what its lane holds already."""
        self._queue(attempt_id, (frame, weight))

    def body(self, attempt_id: int, content: bytes) -> None:
        """Queue body bytes for which credit has been spent."""
        if len(content) <= QUANTUM_BYTES:
            is_small = len(content) < SMALL_PIECE_BYTES
            if not (is_small and self._joins_the_last(attempt_id, content)):
                self._queue(attempt_id, content)
            return
        for start in range(0, len(content), QUANTUM_BYTES):
            self._queue(attempt_id, content[start : start + QUANTUM_BYTES])

    def end_body(self, attempt_id: int) -> None:
        """Queue the mark that this direction's body is complete."""
        self._queue(attempt_id, _END)

    def drop(self, attempt_id: int) -> Sequence[Frame]:
        """Forget what waits of an attempt; return the frames of it that were never sent."""
        lane = self._lanes.pop(attempt_id, None)
        if lane is None:
            return ()
        unsent = [item[0] for item in lane if type(item) is tuple]
        lane.clear()
        return unsent

    def take(self) -> list[Frame | Chunk]:
        """The next batch, empty when nothing waits."""
        batch: list[Frame | Chunk] = list(self._control)
        self._control.clear()
        if self._bulk:
            batch.append(self._bulk.popleft())
            return batch
        room = _ROOM_BYTES
        ready = self._ready
        while ready and room > 0:
            attempt_id, lane = ready.popleft()
            if not lane:
                continue
            room -= _emit(attempt_id, lane, batch)
            if lane:
                ready.append((attempt_id, lane))
            else:
                del self._lanes[attempt_id]
        return batch

    def _joins_the_last(self, attempt_id: int, content: bytes) -> bool:
        """Where a piece of body waits last, put this one into it: credit pays for bytes, and a
        piece of two bytes takes fifty where it waits by itself."""
        lane = self._lanes.get(attempt_id)
        if lane is None:
            return False
        last = lane[-1]
        if not isinstance(last, bytes | bytearray) or len(last) + len(content) > QUANTUM_BYTES:
            return False
        if isinstance(last, bytes):
            last = lane[-1] = bytearray(last)
        last += content
        return True

    def _queue(self, attempt_id: int, item: bytes | _End | _Weighted[Frame]) -> None:
        lane = self._lanes.get(attempt_id)
        if lane is None:
            lane = self._lanes[attempt_id] = deque()
            self._ready.append((attempt_id, lane))
        lane.append(item)


def _emit(attempt_id: int, lane: _Lane[Frame], batch: list[Frame | Chunk]) -> int:
    """Move at least one item, and about a quantum, of a lane into the batch."""
    spent = 0
    pieces: list[bytes | bytearray] = []
    while lane and spent < QUANTUM_BYTES:
        item = lane.popleft()
        if isinstance(item, tuple):
            frame, weight = item
            if pieces:
                batch.append(_chunk(attempt_id, pieces, is_last=False))
                pieces = []
                spent += FRAME_WEIGHT_BYTES
            batch.append(frame)
            spent += weight
        elif isinstance(item, _End):
            batch.append(_chunk(attempt_id, pieces, is_last=True))
            pieces = []
            spent += FRAME_WEIGHT_BYTES
        else:
            pieces.append(item)
            spent += len(item)
    if pieces:
        batch.append(_chunk(attempt_id, pieces, is_last=False))
    return spent


def _chunk(attempt_id: int, pieces: list[bytes | bytearray], *, is_last: bool) -> Chunk:
    whole = len(pieces) == 1 and pieces[0]
    content = whole if isinstance(whole, bytes) else b"".join(pieces)
    return Chunk(attempt_id, content, is_last)
