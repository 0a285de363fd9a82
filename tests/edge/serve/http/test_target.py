"""What a request asks for, in all the forms in which a target may be written."""

import asyncio

import pytest

from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import Request
from tests.edge.serve.rig import RawClient, Rig, echo, post


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


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("extra", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_a_method_that_nobody_knows_is_405_and_the_next_request_is_served(
    rig: Rig, extra: bytes
) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    for method in (b"BREW", b"post", b"M-SEARCH2"):
        answer = await client.ask(post(b"hello", extra=extra).replace(b"POST", method, 1))
        assert (answer.status, answer.error()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"
    assert (await client.ask(post(b"next"))).body == b"next"


async def test_a_body_that_looks_like_a_request_is_a_body(rig: Rig) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    whole = post(b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n")
    client.send(whole[:-28])
    await client.writer.drain()
    client.send(whole[-28:])
    assert (await client.answer()).body == whole[-28:]
    malformed = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(malformed)
    await client.writer.drain()
    assert (await client.ask(whole[-28:])).status in (400, 404)


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize("name", [b"content-type", b"authorization", b"x-api-key"])
async def test_what_is_judged_by_is_said_once(rig: Rig, name: bytes) -> None:
    await rig.listen(echo)
    client = await rig.connect()
    answer = await client.ask(post(extra=name + b": a\r\n" + name + b": b\r\n"))
    assert (answer.status, answer.error()["code"]) == (400, "invalid_value")
    assert await client.closed() == b""


async def test_http_1_0_is_never_told_to_continue(rig: Rig) -> None:
    async def read(request: Request) -> None:
        await request.respond(200, await request.body())

    await rig.listen(read)
    client = await rig.connect()
    client.send(b"POST /v1/echo HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    client.send(b"{}")
    assert (await client.answer()).status == 200
