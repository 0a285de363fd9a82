from __future__ import annotations

import pytest

from iop_node.adapters.http1.endpoint import Endpoint, Origin


@pytest.mark.req("PROF-5")
@pytest.mark.parametrize(
    ("url", "origin", "line"),
    [
        ("http://h", (False, "h", 80), b" / HTTP/1.1\r\nHost: h\r\n"),
        ("http://h:80/v1", (False, "h", 80), b" /v1 HTTP/1.1\r\nHost: h\r\n"),
        (
            "http://H.example:8080/v1",
            (False, "h.example", 8080),
            b" /v1 HTTP/1.1\r\nHost: h.example:8080\r\n",
        ),
        ("https://h/a%2Fb?x=%20&y", (True, "h", 443), b" /a%2Fb?x=%20&y HTTP/1.1\r\nHost: h\r\n"),
        ("https://h:80/", (True, "h", 80), b" / HTTP/1.1\r\nHost: h:80\r\n"),
        ("http://[::1]:9/v1", (False, "::1", 9), b" /v1 HTTP/1.1\r\nHost: [::1]:9\r\n"),
        ("http://h/v1/./a/../b", (False, "h", 80), b" /v1/./a/../b HTTP/1.1\r\nHost: h\r\n"),
    ],
)
def test_a_url_becomes_the_line_it_is_asked_for_with(url, origin, line):
    endpoint = Endpoint.of(url)
    assert endpoint.origin == Origin(*origin)
    assert endpoint.rest_of_line == line


@pytest.mark.parametrize(
    "url",
    [
        "http://h/a b",
        "http://h/a\r\nX-Evil: 1",
        "http://h/\n",
        "http://h\r\nX: 1/",
        "http://h/\x00",
        "http://h/ü",
        "ftp://h/",
        "h:80/v1",
        "http:///v1",
        "",
    ],
)
def test_a_url_that_would_break_a_request_is_refused(url):
    with pytest.raises(ValueError, match="URL"):
        Endpoint.of(url)


@pytest.mark.parametrize(
    ("method", "size", "framing"),
    [
        (b"POST", 0, b"Content-Length: 0\r\n\r\n"),
        (b"POST", 7, b"Content-Length: 7\r\n\r\n"),
        (b"POST", None, b"Transfer-Encoding: chunked\r\n\r\n"),
        (b"GET", 7, b"Content-Length: 7\r\n\r\n"),
        (b"GET", 0, b"\r\n"),
        (b"HEAD", 0, b"\r\n"),
    ],
)
def test_a_head_tells_in_one_way_where_the_body_ends(method, size, framing):
    head = Endpoint.of("http://h/v1").request_head(method, b"A: 1\r\n", size)
    assert head == method + b" /v1 HTTP/1.1\r\nHost: h\r\nA: 1\r\n" + framing
