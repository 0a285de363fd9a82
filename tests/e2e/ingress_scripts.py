"""What bad upstreams do, by the served name under which they do it, and how odd good ones talk."""

from __future__ import annotations

import asyncio
import socket
import struct

from ingress_upstreams import (
    COMPLETION,
    STREAM_HEAD,
    Asked,
    Reader,
    Script,
    Writer,
    chat_chunk,
    chat_stream,
    chat_whole,
    event,
    fine,
    framed,
    held,
    http,
    messages_whole,
    silent,
)

MESSAGE_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 1},
    },
}  # fmt: skip


def begun(asked: Asked) -> bytes:
    """The head and the first words of a streamed answer in the protocol that was asked for."""
    if asked.path != "/v1/messages":
        return STREAM_HEAD + framed(chat_chunk(asked.model, {"content": COMPLETION}))
    block = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    delta = {
        "type": "content_block_delta", "index": 0,
        "delta": {"type": "text_delta", "text": COMPLETION},
    }  # fmt: skip
    events = [event(each, str(each["type"])) for each in (MESSAGE_START, block, delta)]
    return STREAM_HEAD + b"".join(map(framed, events))


def whole(asked: Asked) -> bytes:
    is_messages = asked.path == "/v1/messages"
    return messages_whole(asked.model) if is_messages else chat_whole(asked.model)


def closes(writer: Writer) -> None:
    writer.close()
    raise ConnectionResetError


async def resets(asked: Asked, reader: Reader, writer: Writer) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    closes(writer)


async def hangs_up(asked: Asked, reader: Reader, writer: Writer) -> None:
    closes(writer)


async def stalls(asked: Asked, reader: Reader, writer: Writer) -> None:
    """Falls silent in the middle of its answer."""
    content = whole(asked)
    writer.write(begun(asked) if asked.body.get("stream") else http(content)[:-40])
    await silent(asked, reader, writer)


async def is_cut(asked: Asked, reader: Reader, writer: Writer) -> None:
    """The connection ends in the middle of a chunk, or before as much has come as was announced."""
    if asked.body.get("stream"):
        writer.write(begun(asked) + b"ff\r\ndata: {")
    else:
        writer.write(http(whole(asked))[:-40])
    closes(writer)


async def stops(asked: Asked, reader: Reader, writer: Writer) -> None:
    """The body ends in good order, and the answer in it does not."""
    if asked.body.get("stream"):
        writer.write(begun(asked) + framed(b""))
    else:
        writer.write(http(whole(asked)[:-40]))


async def says_html(asked: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(http(b"<html>It works!</html>", kind="text/html"))


async def says_no_json(asked: Asked, reader: Reader, writer: Writer) -> None:
    if asked.body.get("stream"):
        writer.write(STREAM_HEAD + framed(b"data: <oops>\n\n") + framed(b""))
    else:
        writer.write(http(b"oops"))


async def says_no_http(asked: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    closes(writer)


async def encodes(asked: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(http(b"\x1f\x8b\x08\x00", more="content-encoding: gzip\r\n"))


async def redirects(asked: Asked, reader: Reader, writer: Writer) -> None:
    more = "location: http://169.254.169.254/\r\n"
    writer.write(http(b"", "302 Found", more=more))


async def never_ends_its_line(asked: Asked, reader: Reader, writer: Writer) -> None:
    writer.write(STREAM_HEAD)
    filler = framed(b"data: " + b"x" * 262_144)
    while not writer.is_closing():
        writer.write(filler)
        await writer.drain()
    raise ConnectionResetError


async def folds_headers(asked: Asked, reader: Reader, writer: Writer) -> None:
    """A header that carries more than one line in what looks like one."""
    more = (
        "retry-after: 1\r\n set-cookie: folded=1\r\nx-ratelimit-limit: 5\x0b\r\nserver: secret\r\n"
    )
    writer.write(http(whole(asked), more=more))


async def trickles(asked: Asked, reader: Reader, writer: Writer) -> None:
    """Never silent for long, and never done."""
    writer.write(STREAM_HEAD)
    while not writer.is_closing():
        writer.write(framed(chat_chunk(asked.model, {"content": "on "})))
        await writer.drain()
        await asyncio.sleep(0.05)
    raise ConnectionResetError


ODD_TEXT = "naïve 강 🜂 end"


def _odd_stream(asked: Asked, newline: bytes) -> bytes:
    said = b": a comment\n\n" + b": another\n".join(chat_stream(asked.model, ODD_TEXT))
    return said.replace(b"\n", newline)


def odd(newline: bytes) -> Script:
    """A good stream with the given line endings, which arrives one byte at a time."""

    async def play(asked: Asked, reader: Reader, writer: Writer) -> None:
        writer.write(STREAM_HEAD)
        content = _odd_stream(asked, newline)
        for at in range(len(content)):
            writer.write(framed(content[at : at + 1]))
            if at % 16 == 0:
                await writer.drain()
                await asyncio.sleep(0)
        writer.write(framed(b""))

    return play


def refuses(status: str, content: bytes, kind: str = "application/json") -> Script:
    async def play(asked: Asked, reader: Reader, writer: Writer) -> None:
        writer.write(http(content, status, kind, more="retry-after: 7\r\nserver: secret\r\n"))

    return play


OPENAI_ERROR = b'{"error":{"message":"busy","type":"busy_error","param":null,"code":"busy"}}'
ANTHROPIC_ERROR = b'{"type":"error","error":{"type":"busy_error","message":"busy"}}'
HTML = b"<html>http://10.0.0.1/ is busy</html>"

REFUSALS: dict[str, Script] = {
    f"bad-{status[:3]}-{form}": refuses(status, content, kind)
    for status in ("429 Too Many", "503 Busy", "529 Busy", "500 Broken", "400 Wrong", "401 Who")
    for form, content, kind in (
        ("openai", OPENAI_ERROR, "application/json"),
        ("anthropic", ANTHROPIC_ERROR, "application/json"),
        ("html", HTML, "text/html"),
    )
}

SCRIPTS: dict[str, Script] = {
    "bad-reset": resets,
    "bad-close": hangs_up,
    "bad-silent": silent,
    "bad-stall": stalls,
    "bad-cut": is_cut,
    "bad-stop": stops,
    "bad-html": says_html,
    "bad-no-json": says_no_json,
    "bad-no-http": says_no_http,
    "bad-encoded": encodes,
    "bad-redirect": redirects,
    "bad-line": never_ends_its_line,
    "bad-but-fine": fine,
    "bad-folded": folds_headers,
    "bad-lf": odd(b"\n"),
    "bad-cr": odd(b"\r"),
    "bad-crlf": odd(b"\r\n"),
    **REFUSALS,
    "trickle": trickles,
    "silent-1": silent,
    "silent-2": silent,
    "fine": fine,
    "fine-1": fine,
    "fine-2": fine,
    "fine-route": fine,
    "fine-fallback": fine,
    "held": held,
}
