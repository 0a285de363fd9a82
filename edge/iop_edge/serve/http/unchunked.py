"""Answers for callers that speak HTTP/1.0, who know no chunks.

A body of unknown length then ends with its connection. One that is cut is told by a connection
that is reset; that is for whoever cuts it to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def unchunked(
    cycle: RequestResponseCycle,
) -> Callable[[MutableMapping[str, Any]], Awaitable[None]]:
    """The `send` of one request, which writes a body without a declared length as it is."""
    is_counted = True

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal is_counted
        if message["type"] == "http.response.start":
            is_counted = any(name == b"content-length" for name, _ in message["headers"])
            if not is_counted:
                cycle.chunked_encoding = False
        elif not is_counted:
            # What is expected is what comes, so that the cycle finds nothing missing at the end.
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]  # the same messages under other types

    return send
