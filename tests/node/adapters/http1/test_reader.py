"""What a response is, whichever way its bytes arrive. No socket, no loop."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_node.adapters.http1.reader import (
    MAX_BESIDE_BODY_BYTES,
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    Fields,
    ResponseReader,
)
from iop_shared.errors import Code, Fault


@dataclass
class Read:
    status: int = 0
    fields: Fields = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False

    def begin(self, status: int, fields: Fields) -> None:
        assert not self.status, "a head comes once"
        self.status, self.fields = status, fields

    def take(self, content: bytes) -> None:
        assert self.status, "a head comes before the body"
        assert not self.is_whole
        self.body += content

    def complete(self) -> None:
        assert not self.is_whole
        self.is_whole = True


def read(*pieces: bytes, is_to_head: bool = False) -> tuple[Read, ResponseReader]:
    """Raises Fault."""
    reader, answer = ResponseReader(), Read()
    reader.expect(answer, is_to_head=is_to_head)
    for piece in pieces:
        reader.feed(piece)
    return answer, reader


def code_of(*pieces: bytes) -> Code:
    with pytest.raises(Fault) as refused:
        read(*pieces)
    return refused.value.code


def response(*lines: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode("latin-1") + body


CHUNKED = "Transfer-Encoding: chunked"


class TestABody:
    @pytest.mark.parametrize(
        ("content", "body"),
        [
            (response("Content-Length: 3", body=b"abc"), b"abc"),
            (response("Content-Length: 0"), b""),
            (response(CHUNKED, body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), b"abcde"),
            (response("Transfer-Encoding: Chunked", body=b"0\r\n\r\n"), b""),
            (response(CHUNKED, body=b"3;ext=1\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"), b"abc"),
            (response(CHUNKED, body=b"3  \r\nabc\r\n0\r\n\r\n"), b"abc"),
            (b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", b"abc"),
            (response("Content-Length: 3 ", body=b"abc"), b"abc"),
        ],
    )
    def test_with_a_marked_end_is_whole_there(self, content, body):
        answer, reader = read(content)
        assert (answer.status, answer.body, answer.is_whole) == (200, body, True)
        assert reader.is_reusable

    @pytest.mark.parametrize("lines", [(), ("Connection: close",)])
    def test_without_one_ends_with_the_connection(self, lines):
        answer, reader = read(response(*lines, body=b"abc"), b"def")
        assert not answer.is_whole
        reader.end()
        assert (answer.body, answer.is_whole, reader.is_reusable) == (b"abcdef", True, False)

    @pytest.mark.req("OAI-7")
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"HTTP/1.1 200 OK\r\n",
            response("Content-Length: 3", body=b"ab"),
            response(CHUNKED, body=b"3\r\nabc\r\n"),
            response(CHUNKED, body=b"3\r\nabc\r\n0\r\n"),
            response(status="100 Continue"),
        ],
    )
    def test_that_lacks_its_end_is_cut(self, content):
        answer, reader = read(content)
        with pytest.raises(Fault) as cut:
            reader.end()
        assert (cut.value.code, answer.is_whole) == (Code.UPSTREAM_CLOSED, False)

    @pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
    @pytest.mark.parametrize("lines", [(), ("Content-Length: 3",), (CHUNKED,)])
    def test_is_none_for_a_status_that_has_none(self, status, lines):
        answer, reader = read(response(*lines, status=status))
        assert (answer.body, answer.is_whole, reader.is_reusable) == (b"", True, True)

    @pytest.mark.parametrize("lines", [(), ("Content-Length: 3",), (CHUNKED,)])
    def test_is_none_for_a_head_request(self, lines):
        answer, _ = read(response(*lines), is_to_head=True)
        assert (answer.status, answer.body, answer.is_whole) == (200, b"", True)

    def test_takes_no_header_from_its_trailer(self):
        answer, _ = read(response(CHUNKED, body=b"0\r\nRetry-After: 1\r\n\r\n"))
        assert answer.fields == [(b"transfer-encoding", b"chunked")]


class TestAHead:
    def test_has_its_names_in_lower_case_and_its_values_without_blanks(self):
        answer, _ = read(response("X-A:  1 \t", "x-b:", "Content-Length: 0"))
        assert answer.fields == [(b"x-a", b"1"), (b"x-b", b""), (b"content-length", b"0")]

    @pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints"])
    def test_that_is_interim_is_passed_over(self, status):
        interim = response("Link: </a>", status=status)
        answer, reader = read(interim * 2 + response("Content-Length: 2", body=b"ok"))
        assert (answer.status, answer.body, answer.is_whole) == (200, b"ok", True)
        assert answer.fields == [(b"content-length", b"2")]
        assert reader.is_reusable

    def test_never_comes_after_interim_ones_without_end(self):
        interim = response("Link: </a>", status="103 Early Hints")
        assert code_of(*[interim] * (MAX_BESIDE_BODY_BYTES // len(interim) + 1)) is (
            Code.UPSTREAM_INVALID
        )

    @pytest.mark.parametrize(
        "content",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"HTTP/1.1 99 Low\r\n\r\n",
            b"HTTP/1.1 099 Low\r\n\r\n",
            b"HTTP/1.1 600 High\r\n\r\n",
            b"HTTP/1.1 1000 High\r\n\r\n",
            b"HTTP/3.7 200 OK\r\n\r\n",
            response("A: 1\r\n folded"),
            response("A : 1"),
            response(": 1"),
            response("A: 1\x00"),
            response("A: 1\rB: 2"),
            response("A: " + "a" * MAX_FIELD_BYTES),
            response(*["a: 1"] * (MAX_FIELDS + 1)),
        ],
    )
    def test_that_is_none_is_invalid(self, content):
        assert code_of(content) is Code.UPSTREAM_INVALID

    @pytest.mark.parametrize(
        "lines",
        [
            ("Content-Length: 3", CHUNKED),
            (CHUNKED, "Content-Length: 3"),
            ("Content-Length: 3", "Content-Length: 4"),
            ("Content-Length: 3", "Content-Length: 3"),
            ("Content-Length: 3, 3",),
            ("Content-Length: +3",),
            ("Content-Length: -3",),
            ("Content-Length: 0x3",),
            ("Content-Length: 99999999999999999999",),
            ("Transfer-Encoding: gzip, chunked",),
            ("Transfer-Encoding: chunked, gzip",),
            ("Transfer-Encoding: identity",),
            ("Transfer-Encoding: xchunked",),
            (CHUNKED, CHUNKED),
        ],
    )
    def test_that_could_be_read_in_two_ways_is_read_in_none(self, lines):
        assert code_of(response(*lines, body=b"3\r\nabc\r\n0\r\n\r\n")) is Code.UPSTREAM_INVALID

    @pytest.mark.parametrize(
        "beginning",
        [
            b"HTTP/1.1 200 " + b"O" * 40,
            b"HTTP/1.1 200 OK\r\nX-Endless: ",
            response(CHUNKED, body=b"3;"),
            response(CHUNKED, body=b"0\r\nX-Endless: "),
        ],
        ids=["status", "header", "chunk extension", "trailer"],
    )
    def test_line_without_end_is_given_up(self, beginning):
        with pytest.raises(Fault) as refused:
            read(beginning, *[b"x" * 1000] * (MAX_BESIDE_BODY_BYTES // 1000 + 1))
        assert refused.value.code is Code.UPSTREAM_INVALID


class TestAConnection:
    @pytest.mark.parametrize(
        "content",
        [
            response("Connection: close", "Content-Length: 2", body=b"ok"),
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + CHUNKED.encode() + b"\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            response("Content-Length: 2", body=b"ok" + response("Content-Length: 4", body=b"evil")),
            response("Content-Length: 2", body=b"okx"),
            response(CHUNKED, body=b"2\r\nok\r\n0\r\n\r\nx"),
            response("Connection: close", "Content-Length: 2", body=b"okx"),
        ],
        ids=[
            "close",
            "1.0",
            "1.0 chunked",
            "second answer",
            "surplus",
            "after chunks",
            "after close",
        ],
    )
    def test_is_not_used_again_where_it_may_not_or_something_is_left_in_it(self, content):
        answer, reader = read(content)
        assert (answer.body, answer.is_whole, reader.is_reusable) == (b"ok", True, False)

    def test_of_http_1_0_is_used_again_where_it_says_so(self):
        _, reader = read(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n")
        assert reader.is_reusable

    def test_carries_many_answers_and_mixes_none(self):
        reader = ResponseReader()
        for number in range(50):
            answer = Read()
            reader.expect(answer)
            body = b"%d" % number
            reader.feed(
                response(
                    CHUNKED, f"X-N: {number}", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
                )
                if number % 2
                else response(f"Content-Length: {len(body)}", f"X-N: {number}", body=body)
            )
            assert (answer.body, answer.is_whole, reader.is_reusable) == (body, True, True)
            assert (b"x-n", body) in answer.fields


# --- any bytes at all -----------------------------------------------------------------------------

TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)
FRAMING = {"content-length", "transfer-encoding", "connection", "upgrade"}


@st.composite
def good_responses(draw: st.DrawFn) -> tuple[bytes, int, Fields, bytes, bool]:
    """A valid response, what it says, and whether its end is marked."""
    status = draw(st.integers(200, 599).filter(lambda n: n not in (204, 304)))
    pairs = [
        (f"x-{name}", value.strip())
        for name, value in draw(st.lists(st.tuples(TOKENS, VALUES), max_size=6))
        if name not in FRAMING
    ]
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    body = b"".join(pieces)
    kind = draw(st.sampled_from(["length", "chunked", "close"]))
    if kind == "length":
        pairs.append(("content-length", str(len(body))))
        content = body
    elif kind == "chunked":
        pairs.append(("transfer-encoding", "chunked"))
        extension = draw(st.sampled_from([b"", b";a=b", b";a"]))
        content = b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces)
        content += b"0\r\n" + draw(st.sampled_from([b"", b"x-trailer: 1\r\n"])) + b"\r\n"
    else:
        pairs.append(("connection", "close"))
        content = body
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 103 Hints\r\nlink: a\r\n\r\n"]))
    head = response(*(f"{name}: {value}" for name, value in pairs), status=f"{status} Fine")
    fields = [(name.encode(), value.encode()) for name, value in pairs]
    return interim + head + content, status, fields, body, kind != "close"


@st.composite
def cuts(draw: st.DrawFn, content: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(content)), max_size=12)))
    return [
        content[start:end] for start, end in zip([0, *places], [*places, len(content)], strict=True)
    ]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_split_of_the_bytes_is_the_same_answer(data):
    content, status, fields, body, has_end = data.draw(good_responses())
    answer, reader = read(*data.draw(cuts(content)))
    assert answer.is_whole is has_end
    if not has_end:
        reader.end()
    assert (answer.status, answer.fields, answer.body) == (status, fields, body)
    assert answer.is_whole
    assert reader.is_reusable is has_end


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_beginning_of_an_answer_with_a_marked_end_is_whole(data):
    content, *_ = data.draw(good_responses().filter(lambda made: made[-1]))
    length = data.draw(st.integers(0, len(content) - 1))
    answer, reader = read(*data.draw(cuts(content[:length])))
    assert not answer.is_whole
    with pytest.raises(Fault):
        reader.end()


def reference(content: bytes) -> tuple[int, bytes] | None:
    """What another parser makes of it, None where it makes nothing."""
    other = h11.Connection(h11.CLIENT)
    other.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    status, body = 0, b""
    try:
        other.receive_data(content)
        other.receive_data(b"")
        while True:
            event = other.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_a_spoilt_answer_is_whole_only_where_another_parser_reads_the_same(data):
    content = bytearray(data.draw(good_responses())[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["change", "insert", "remove"])):
            case "change":
                content[place] = data.draw(st.integers(0, 255))
            case "insert":
                content[place:place] = data.draw(
                    st.sampled_from([b"\r\n", b" ", b"0", b"\x00", b":", b"\r", b"\n", b","])
                )
            case "remove":
                del content[place]
    reader, answer = ResponseReader(), Read()
    reader.expect(answer)
    with contextlib.suppress(Fault):
        for piece in data.draw(cuts(bytes(content))):
            reader.feed(piece)
        if not answer.is_whole:
            reader.end()
    agreed = reference(bytes(content))
    if answer.is_whole and agreed is not None:
        assert (answer.status, answer.body) == agreed


@given(st.lists(st.binary(max_size=200), max_size=10))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_raise_nothing_but_a_fault(pieces):
    reader, answer = ResponseReader(), Read()
    reader.expect(answer)
    with contextlib.suppress(Fault):
        for piece in pieces:
            reader.feed(piece)
        reader.end()
