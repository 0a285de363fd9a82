from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
import trustme

from iop_node.adapters.http1 import dial as dialling
from iop_node.adapters.http1.dial import Abortable, dial
from iop_node.adapters.http1.endpoint import Origin
from iop_shared.errors import Code, Fault


class Held(Abortable):
    def connection_made(self, transport):
        self.transport = transport

    def abort(self):
        self.transport.abort()


async def dialled(port, host="model.example", tls=None, allow_link_local=False):
    """The address that was connected to."""
    held = await dial(
        Origin(tls is not None, host, port), Held, tls=tls, allow_link_local=allow_link_local
    )
    peer = held.transport.get_extra_info("peername")
    held.transport.abort()
    return peer[0]


@pytest.fixture
def resolving(monkeypatch):
    """What a name stands for: one list of addresses for each time it is asked for."""
    asked = []

    def stand_for(*lists):
        answers = list(lists)

        async def resolve(origin):
            asked.append(origin.host)
            return answers.pop(0)

        monkeypatch.setattr(dialling, "_resolve", resolve)
        return asked

    return stand_for


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


async def refusal_of(awaitable):
    with pytest.raises(Fault) as refused:
        await awaitable
    assert refused.value.code is Code.UPSTREAM_REFUSED
    return refused.value.message


class TestAnAddress:
    @pytest.mark.req("SEC-1")
    async def test_that_was_judged_is_the_one_connected_to(self, resolving, listening):
        """A name that means something else by the time it is asked again is not asked again."""
        asked = resolving(["127.0.0.1"], ["169.254.169.254"])
        assert await dialled(listening) == "127.0.0.1"
        assert asked == ["model.example"]

    @pytest.mark.parametrize(
        "address",
        ["169.254.169.254", "169.254.0.1", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254"],
    )
    async def test_that_is_link_local_is_not_dialled(self, resolving, listening, address):
        resolving([address])
        assert "link-local" in await refusal_of(dialled(listening))

    async def test_that_is_link_local_leaves_the_others_of_its_name(self, resolving, listening):
        resolving(["169.254.169.254", "127.0.0.1"])
        assert await dialled(listening) == "127.0.0.1"

    async def test_that_is_link_local_is_dialled_where_that_is_allowed(
        self, resolving, listening, monkeypatch
    ):
        monkeypatch.setattr(dialling, "is_link_local", lambda address: address == "127.0.0.1")
        resolving(["127.0.0.1"], ["127.0.0.1"])
        assert "link-local" in await refusal_of(dialled(listening))
        assert await dialled(listening, allow_link_local=True) == "127.0.0.1"

    async def test_that_takes_no_connection_is_followed_by_the_next(self, resolving, listening):
        resolving(["127.0.0.2", "127.0.0.1"])
        with socket.socket() as taken:
            taken.bind(("127.0.0.2", listening))
            assert await dialled(listening) == "127.0.0.1"

    async def test_that_does_not_answer_is_followed_by_the_next(
        self, resolving, monkeypatch, full_backlog
    ):
        monkeypatch.setattr(dialling, "HEAD_START_S", 0.01)
        port = int(full_backlog.rsplit(":", 1)[1])
        resolving(["127.0.0.1", "127.0.0.2"])
        with socket.create_server(("127.0.0.2", port)):
            assert await dialled(port) == "127.0.0.2"

    async def test_is_refused_where_none_of_several_takes_a_connection(self, resolving):
        resolving(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            message = await refusal_of(dialled(taken.getsockname()[1]))
        assert message == "the upstream took no connection"

    async def test_of_version_6_is_dialled(self):
        try:
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("this machine has no IPv6")
        with listener:
            assert await dialled(listener.getsockname()[1], host="::1") == "::1"


async def test_a_connection_does_not_wait_to_fill_its_packets(listening):
    held = await dial(Origin(False, "127.0.0.1", listening), Held, tls=None, allow_link_local=False)
    connected = held.transport.get_extra_info("socket")
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    held.transport.abort()


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 300])
async def test_a_name_that_means_nothing_is_refused(host):
    message = await refusal_of(dialled(1, host=host))
    assert message == "the upstream's name could not be resolved"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.1"]])
async def test_giving_up_leaves_no_socket_behind(resolving, full_backlog, open_sockets, addresses):
    resolving(addresses)
    port = int(full_backlog.rsplit(":", 1)[1])
    before = open_sockets()
    task = asyncio.create_task(dialled(port))
    while open_sockets() == before:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while open_sockets() > before:
        await asyncio.sleep(0)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


class TestTls:
    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def client_tls(self, authority) -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    async def server(self, authority, name, asked):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(context)
        context.sni_callback = lambda _, asked_name, __: asked.append(asked_name)
        return await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", 0, ssl=context
        )

    @pytest.mark.parametrize("host", ["model.example", "model.example."])
    async def test_asks_for_the_upstream_by_its_name(self, authority, client_tls, resolving, host):
        resolving(["127.0.0.1"])
        asked = []
        async with await self.server(authority, "model.example", asked) as server:
            port = server.sockets[0].getsockname()[1]
            assert await dialled(port, host=host, tls=client_tls) == "127.0.0.1"
        assert asked == ["model.example"]

    async def test_that_proves_another_name_is_refused(self, authority, client_tls, resolving):
        resolving(["127.0.0.1"])
        async with await self.server(authority, "other.example", []) as server:
            port = server.sockets[0].getsockname()[1]
            message = await refusal_of(dialled(port, tls=client_tls))
        assert message == "no TLS session with the upstream came about"

    async def test_handshake_that_is_given_up_closes_the_connection(self, client_tls, resolving):
        resolving(["127.0.0.1"])
        asked, gone = asyncio.Event(), asyncio.Event()

        class Silent(asyncio.Protocol):
            def data_received(self, data):
                asked.set()

            def connection_lost(self, error):
                gone.set()

        server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            task = asyncio.create_task(dialled(port, tls=client_tls))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()
