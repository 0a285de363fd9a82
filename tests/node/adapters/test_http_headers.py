from __future__ import annotations

import pytest

from iop_node.adapters.http_headers import OutgoingHeaders, caller_headers


def upstream_headers(passed_on, own, auth_override):
    return OutgoingHeaders(own).of(passed_on, auth_override)


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
        assert dict(headers) == {
            "X-Tag": "1",
            "Accept-Encoding": "identity",
            "User-Agent": "iop-node",
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
        assert set(headers) == {"Accept-Encoding", "User-Agent"}

    def test_the_adapters_own_stand_over_those_passed_on_whatever_their_case(self):
        headers = upstream_headers([("x-KEY", "caller")], [("X-Key", "own")], None)
        assert headers.getall("x-key") == ["own"]

    @pytest.mark.req("OAI-4")
    @pytest.mark.parametrize("target", ["Authorization", "X-Api-Key", "X-Provider-Token"])
    def test_a_callers_provider_token_takes_the_place_of_the_adapters_credential(self, target):
        headers = upstream_headers(
            [(target, "passed on"), ("X-Tag", "1")],
            [("authorization", "Bearer own"), ("X-Org", "lab")],
            (target, "Bearer theirs"),
        )
        assert headers.getall(target) == ["Bearer theirs"]
        assert "own" not in str(headers)
        assert (headers["X-Tag"], headers["X-Org"]) == ("1", "lab")


class TestInwards:
    @pytest.mark.req("SEC-1")
    def test_only_what_a_caller_may_see_comes_back(self):
        assert caller_headers(
            {
                "Content-Type": "text/event-stream",
                "Retry-After": "3",
                "X-RateLimit-Remaining-Tokens": "10",
                "Set-Cookie": "session=1",
                "Server": "vllm/0.9 on gpu-7.internal",
                "Location": "http://10.0.0.1/",
                "Connection": "close",
                "Content-Length": "3",
                "Transfer-Encoding": "chunked",
                "X-Upstream-Host": "gpu-7.internal",
            }
        ) == [
            ("content-type", "text/event-stream"),
            ("retry-after", "3"),
            ("x-ratelimit-remaining-tokens", "10"),
        ]

    def test_a_value_with_a_line_break_does_not(self):
        assert caller_headers({"Content-Type": "text/html\r\nSet-Cookie: a=1"}) == []
