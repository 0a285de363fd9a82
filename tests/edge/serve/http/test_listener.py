import asyncio
import socket
import ssl
import stat
import sys
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from iop_edge.config.effective import IngressLimits, Tls
from iop_edge.serve.http.address import BACKLOG, ListenError, bind, split_host_port
from iop_edge.serve.http.connection import Connection
from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.http.request import CallerGoneError, Request
from tests.edge.serve.rig import RawClient, Rig, echo, post

SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text())


async def test_port_zero_picks_a_port_that_can_be_read(rig: Rig) -> None:
    listener = await rig.listen(echo)
    assert int(listener.address.removeprefix("127.0.0.1:")) > 0
    client = await rig.connect()
    assert (await client.ask(post(b"hello"))).body == b"hello"


async def test_a_taken_port_is_named(rig: Rig) -> None:
    listener = await rig.listen(echo)
    second = HttpListener(lambda *_: asyncio.sleep(0), listener.address)
    with pytest.raises(ListenError) as caught:
        await second.start()
    assert str(caught.value) == (
        f"cannot listen on {listener.address}: the address is already in use"
    )


@pytest.mark.parametrize("address", ["", "8080", "::1:80", "host:", "host:http", "h:70000", ":80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ListenError):
        split_host_port(address)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert split_host_port("[::1]:8080") == ("::1", 8080)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6_is_listened_on() -> None:
    try:
        bound = bind("[::1]:0")
    except ListenError as error:
        pytest.skip(error.reason)
    async with HttpListener(_ok, bound) as listener:
        assert listener.address.startswith("[::1]:")
        port = int(listener.address.rpartition(":")[2])
        client = RawClient(*await asyncio.open_connection("::1", port))
        assert (await client.ask(post())).status == 200
        client.close()


async def test_sockets_that_are_bound_already_are_served() -> None:
    bound = bind("127.0.0.1:0")
    async with HttpListener(_ok, bound) as listener:
        client = RawClient(*await asyncio.open_connection(*bound[0].getsockname()))
        assert (await client.ask(post())).status == 200
        assert listener.address == f"127.0.0.1:{bound[0].getsockname()[1]}"
        client.close()


async def test_a_burst_of_callers_may_wait_to_be_accepted() -> None:
    bound = bind("127.0.0.1:0")
    async with HttpListener(_ok, bound):
        # Of a socket that listens, Linux tells in this place how many may wait.
        info = bound[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert int.from_bytes(info[28:32], sys.byteorder) == min(BACKLOG, SOMAXCONN)


@pytest.mark.req("SEC-2")
async def test_a_unix_socket_is_for_its_owner_alone_and_goes_with_the_listener(
    tmp_path: Path,
) -> None:
    path = tmp_path / "admin.sock"
    async with HttpListener(_ok, f"unix:{path}") as listener:
        assert listener.address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client = RawClient(*await asyncio.open_unix_connection(str(path)))
        assert (await client.ask(post())).status == 200
        client.close()
    assert not path.exists()


async def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with HttpListener(_ok, f"unix:{path}"):
        with pytest.raises(ListenError, match="already in use"):
            await HttpListener(_ok, f"unix:{path}").start()
    path.write_text("a file")
    with pytest.raises(ListenError, match="no socket"):
        await HttpListener(_ok, f"unix:{path}").start()


@pytest.mark.req("SEC-3")
async def test_tls_is_spoken_and_a_client_certificate_is_demanded(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = ca.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = Tls(
        cert_file=str(tmp_path / "cert.pem"),
        key_file=str(tmp_path / "key.pem"),
        client_ca_file=str(tmp_path / "ca.pem"),
    )
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    async with HttpListener(_ok, "127.0.0.1:0", tls=tls) as listener:
        port = int(listener.address.rpartition(":")[2])

        async def ask(context: ssl.SSLContext) -> int:
            opened = asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            client = RawClient(*await opened)
            try:
                return (await client.ask(post())).status
            finally:
                client.close()

        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(trusting)
        ca.issue_cert("caller@example.org").configure_cert(trusting)
        assert await ask(trusting) == 200


async def test_a_certificate_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    listener = HttpListener(_ok, "127.0.0.1:0", tls=Tls(cert_file=missing, key_file=missing))
    with pytest.raises(ListenError, match=r"none\.pem"):
        await listener.start()


async def test_an_encrypted_key_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("edge.example.org")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    cert_file, key_file = tmp_path / "edge.crt", tmp_path / "edge.key"
    issued.cert_chain_pems[0].write_to_path(cert_file)
    key_file.write_bytes(encrypted)
    tls = Tls(cert_file=str(cert_file), key_file=str(key_file))
    with pytest.raises(ListenError, match=r"edge\.key"):
        await HttpListener(_ok, "127.0.0.1:0", tls=tls).start()


async def test_small_packets_are_sent_without_delay(rig: Rig) -> None:
    seen: list[int] = []

    async def look(request: Request) -> None:
        for connection in rig.listener.connections:
            each = connection._transport.get_extra_info("socket")
            seen.append(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await request.respond(200, b"")

    await rig.listen(look)
    await (await rig.connect()).ask(post())
    assert len(seen) == 1
    assert seen[0] != 0


async def test_stopping_lets_a_request_end_and_takes_no_new_connection(rig: Rig) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> None:
        started.set()
        await may_end.wait()
        await request.respond(200, b"whole")

    listener = await rig.listen(slow)
    idle, busy = await rig.connect(), await rig.connect()
    busy.send(post())
    await started.wait()
    stopping = asyncio.create_task(listener.stop(grace_s=60))
    assert await idle.closed() == b""
    with pytest.raises(ConnectionRefusedError):
        await rig.connect()
    assert not stopping.done()
    may_end.set()
    answer = await busy.answer()
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"whole", "close")
    await stopping
    assert not listener.connections


async def test_the_deadline_of_a_stop_cuts_and_cancels_what_is_left(rig: Rig) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    listener = await rig.listen(endless)
    client = await rig.connect()
    client.send(post())
    await started.wait()
    await listener.stop(grace_s=0)
    assert cancelled.is_set()
    assert await client.closed() == b""


async def test_a_connection_that_is_made_while_its_listener_stops_is_closed_at_once(
    rig: Rig,
) -> None:
    has_left, may_end, handled = asyncio.Event(), asyncio.Event(), 0

    async def linger(request: Request) -> None:
        nonlocal handled
        handled += 1
        try:
            await asyncio.Event().wait()
        finally:
            has_left.set()
            await may_end.wait()

    listener = await rig.listen(linger)
    loop = asyncio.get_running_loop()
    busy = await rig.connect()
    busy.send(post())
    async with asyncio.timeout(10):
        while not handled:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(listener.stop(grace_s=0))
        await has_left.wait()
        # As one is whose handshake was under way.
        ours, theirs = socket.socketpair()
        theirs.sendall(post())
        late, _ = await loop.connect_accepted_socket(lambda: Connection(listener, loop), ours)
        is_closed = late.is_closing()
        theirs.close()
        may_end.set()
        await stopping
    assert is_closed
    assert handled == 1


@pytest.mark.req("NODE-7")
async def test_a_handler_is_cancelled_when_its_caller_leaves(rig: Rig) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> None:
        await request.body()
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await rig.listen(endless)
    client = await rig.connect()
    client.send(post())
    await started.wait()
    client.close()
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_a_surface_may_keep_its_handlers_when_callers_leave(rig: Rig) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def steadfast(request: Request) -> None:
        started.set()
        with pytest.raises(CallerGoneError):
            await request.body()
        await asyncio.sleep(0)
        ended.set()

    await rig.listen(steadfast, cancels_when_caller_leaves=False)
    client = await rig.connect()
    client.send(post()[:-1])
    await started.wait()
    client.close()
    async with asyncio.timeout(5):
        await ended.wait()


async def test_an_open_listener_says_how_many_connections_it_has(rig: Rig) -> None:
    listener = await rig.listen(echo, max_connections=5)
    assert listener.limits == IngressLimits(max_connections=5)
    client = await rig.connect()
    await client.ask(post())
    assert len(listener.connections) == 1


async def _ok(request: Request) -> None:
    await request.respond(200, b"")
