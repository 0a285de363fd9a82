"""Which tool call a fragment of a chat completion's stream belongs to.

OpenAI numbers the calls of an answer and names each, by id and function, in its first fragment.
Some servers number none, some give all of them the same number, and some a new id to each
fragment. So what has a known id is of that call; what has a new id and a function begins one; and
so does, where nothing is numbered, what has a function though its call has one already. Both ends
that read such streams count alike. It must never know what a call says.
"""

from __future__ import annotations


class CallNumbers:
    """Of one answer; numbers go up from 0."""

    __slots__ = ("_has_function", "_of_id", "_of_index")

    def __init__(self) -> None:
        self._has_function: list[bool] = []
        self._of_id: dict[str, int] = {}
        self._of_index: dict[int | None, int] = {}

    def of(self, index: int | None, call_id: str, function: str) -> int:
        """The number of a fragment's call. What the server did not give is None or empty."""
        number = self._of_index.get(index)
        known = self._of_id.get(call_id) if call_id else None
        if known is not None:
            number = known
        elif number is None or self._begins(number, index, call_id, function):
            number = len(self._has_function)
            self._has_function.append(False)
        if call_id:
            self._of_id[call_id] = number
        if function:
            self._has_function[number] = True
        self._of_index[index] = number
        return number

    def _begins(self, current: int, index: int | None, call_id: str, function: str) -> bool:
        return bool(function and self._has_function[current] and (call_id or index is None))
