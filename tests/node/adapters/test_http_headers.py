from __future__ import annotations

import pytest

from iop_node.adapters.http_headers import OutgoingHeaders, caller_headers


def upstream_headers(passed_on, own, auth_override, **more):
    """As whoever reads the lines has them: names in lower case."""
    lines = OutgoingHeaders(own).of(passed_on, auth_override, **more).decode()
    assert lines.endswith("\r\n")
    pairs = [line.split(": ", 1) for line in lines.removesuffix("\r\n").split("\r\n")]
    names = [name.lower() for name, _ in pairs]
    assert len(set(names)) == len(names)
    return dict(zip(names, (value for _, value in pairs), strict=True))


class TestOutwards:
    def test_hop_by_hop_headers_and_framing_never_go_on(self):
        headers = upstream_headers(
            [
                ("Host", "evil"),
                ("Connection", "close"),
                ("Transfer-Encoding", "chunked"),
                ("Content-Length", "7"),
                ("Accept-Encoding", "gzip"),
                ("X-Tag", "1"),
            ],
            [],
            None,
        )
        assert headers == {
            "x-tag": "1",
            "accept-encoding": "identity",
            "user-agent": "iop-node",
        }

    @pytest.mark.parametrize(
        "pair",
        [
            ("X-A", "1\r\nX-Evil: 1"),
            ("X-A", "1\nX-Evil: 1"),
            ("X-A", "\x00"),
            ("X\r\nX-Evil", "1"),
            ("X A", "1"),
            ("", "1"),
            ("X:A", "1"),
        ],
    )
    def test_what_would_break_the_framing_is_left_out(self, pair):
        headers = upstream_headers([pair], [], None)
        assert set(headers) == {"accept-encoding", "user-agent"}

    def test_the_adapters_own_stand_over_those_passed_on_whatever_their_case(self):
        headers = upstream_headers([("x-KEY", "caller")], [("X-Key", "own")], None)
        assert headers["x-key"] == "own"

    @pytest.mark.req("OAI-4")
    @pytest.mark.parametrize("target", ["Authorization", "X-Api-Key", "X-Provider-Token"])
    def test_a_callers_provider_token_takes_the_place_of_the_adapters_credential(self, target):
        headers = upstream_headers(
            [(target, "passed on"), ("X-Tag", "1")],
            [("authorization", "Bearer own"), ("X-Org", "lab")],
            (target, "Bearer theirs"),
        )
        assert headers[target.lower()] == "Bearer theirs"
        assert "own" not in str(headers)
        assert (headers["x-tag"], headers["x-org"]) == ("1", "lab")


class TestInwards:
    @pytest.mark.req("SEC-1")
    def test_only_what_a_caller_may_see_comes_back(self):
        assert caller_headers(
            [
                (b"content-type", b"text/event-stream"),
                (b"retry-after", b"3"),
                (b"x-ratelimit-remaining-tokens", b"10"),
                (b"set-cookie", b"session=1"),
                (b"server", b"vllm/0.9 on gpu-7.internal"),
                (b"location", b"http://10.0.0.1/"),
                (b"connection", b"close"),
                (b"content-length", b"3"),
                (b"transfer-encoding", b"chunked"),
                (b"x-upstream-host", b"gpu-7.internal"),
            ]
        ) == [
            ("content-type", "text/event-stream"),
            ("retry-after", "3"),
            ("x-ratelimit-remaining-tokens", "10"),
        ]

    def test_a_value_with_a_line_break_does_not(self):
        assert caller_headers([(b"content-type", b"text/html\r\nSet-Cookie: a=1")]) == []
