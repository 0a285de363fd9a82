from __future__ import annotations

import pytest

from iop_edge.serve.admin.guard import is_local, refusal

Headers = list[tuple[bytes, bytes]]


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:18081", "localhost", "localhost:18081", "[::1]:18081", "127.8.0.1:1"],
)
def test_a_host_that_is_this_machine_is_answered(host: str) -> None:
    assert is_local(host)
    assert refusal([(b"host", host.encode())]) is None


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:18081",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1/evil",
        "127.0.0.1:99999",
        "127.0.0.1:x",
        "[::1",
        "[::2]:80",
        "0.0.0.0:18081",
        "10.0.0.1:18081",
        "2130706433",
        "",
        " ",
        "\xff",
    ],
)
def test_a_rebound_host_is_refused(host: str) -> None:
    assert not is_local(host)
    refused = refusal([(b"host", host.encode("latin-1"))])
    assert refused is not None
    assert refused.code == "host_refused"
    assert host.strip() == "" or host not in refused.message


@pytest.mark.req("SEC-2")
def test_no_host_and_two_hosts_are_refused() -> None:
    assert refusal([]) is not None
    assert refusal([(b"host", b"localhost"), (b"host", b"localhost")]) is not None


@pytest.mark.req("SEC-2")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "http://127.0.0.1",
        "file://",
        "http://127.0.0.1:18081.evil.example",
        "",
    ],
)
def test_another_origin_is_refused(origin: str) -> None:
    headers: Headers = [(b"host", b"127.0.0.1:18081"), (b"origin", origin.encode())]
    refused = refusal(headers)
    assert refused is not None
    assert refused.code == "origin_refused"


@pytest.mark.req("SEC-2")
def test_the_same_origin_and_no_origin_are_answered() -> None:
    host = (b"host", b"127.0.0.1:18081")
    assert refusal([host]) is None
    assert refusal([host, (b"origin", b"http://127.0.0.1:18081")]) is None


@pytest.mark.req("SEC-2")
def test_over_a_unix_socket_the_name_says_nothing_and_an_origin_still_does() -> None:
    assert refusal([(b"host", b"edge")], is_unix=True) is None
    headers: Headers = [(b"host", b"edge"), (b"origin", b"https://evil.example")]
    assert refusal(headers, is_unix=True) is not None
