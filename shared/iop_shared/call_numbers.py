"""Which tool call a fragment of a chat completion's stream belongs to.

OpenAI numbers the calls of an answer and names each in its first fragment. Some servers number
none, and some give all of them the same number; they name them. So what has a new name is a new
call. Both ends that read such streams count alike. It must never know what a call says.
"""

from __future__ import annotations


class CallNumbers:
    """Of one answer; numbers go up from 0."""

    __slots__ = ("_ids", "_of_index")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._of_index: dict[int | None, int] = {}

    def of(self, index: int | None, call_id: str) -> int:
        """The number of a fragment's call. `index` and `call_id` are as the server gave them, None
        and empty where it gave none."""
        ids = self._ids
        number = self._of_index.get(index)
        if number is None or (call_id and ids[number] and call_id != ids[number]):
            number = len(ids)
            ids.append(call_id)
        elif call_id:
            ids[number] = call_id
        self._of_index[index] = number
        return number
