"""What a request asks for, in all the forms in which a target may be written."""

import asyncio

import pytest

from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import RawClient, Rig


async def tell(request: Request) -> None:
    await request.respond(200, f"{request.path}?{request.query}".encode())


async def ask(target: bytes, host: bytes, method: bytes = b"GET") -> tuple[int, bytes]:
    async with HttpListener(tell, "127.0.0.1:0") as listener:
        name, _, port = listener.address.rpartition(":")
        client = RawClient(*await asyncio.open_connection(name, int(port)))
        try:
            answer = await client.ask(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, host))
        finally:
            client.close()
        return answer.status, answer.body


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (b"/a%2fb/%2e%2e?c%2f", b"/a/b/..?c%2f"),
        (b"//evil/a", b"//evil/a?"),
        (b"/a;b?c?d", b"/a;b?c?d"),
        (b"/%00%ff", "/\x00\ufffd?".encode()),
        (b"*", b"*?"),
        (b"http://LOCALHOST:1?a", b"/?a"),
        (b"http://localhost:1/a/b?c", b"/a/b?c"),
    ],
)
async def test_a_target_is_a_path_and_a_query(target: bytes, told: bytes) -> None:
    assert await ask(target, b"host: localhost:1\r\n") == (200, told)


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "target",
    [
        b"http://evil/status",
        b"http://localhost:1@evil/status",
        b"http://evil@localhost:1/status",
        b"http://localhost:2/status",
        b"http://localhost:1#@evil/status",
        b"/status#a",
        b"status",
        b"?a",
        b"localhost:1",
    ],
)
async def test_a_target_that_two_readers_could_read_differently_is_400(target: bytes) -> None:
    status, _ = await ask(target, b"host: localhost:1\r\n")
    assert status == 400


async def test_http_1_0_is_never_told_to_continue(rig: Rig) -> None:
    async def read(request: Request) -> None:
        await request.respond(200, await request.body())

    await rig.listen(read)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    client.send(b"{}")
    assert (await client.answer()).status == 200
