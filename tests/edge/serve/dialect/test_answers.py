import json
from typing import Any

import pytest

from iop_edge.runtime.work import AnswerReader, HeaderPairs, ReportedUsage
from iop_edge.serve.dialect import answers
from iop_edge.serve.dialect.answers import reader_for, status_for
from iop_edge.serve.dialect.errors import Dialect, dialect_of
from iop_edge.serve.dialect.observers import ChatObserver
from iop_shared.errors import Code, Fault


def reader(
    status: int = 200,
    headers: HeaderPairs = (),
    *,
    is_stream: bool = False,
    dialect: Dialect = Dialect.OPENAI,
) -> AnswerReader:
    return reader_for(
        status,
        headers,
        is_stream=is_stream,
        observer=ChatObserver(),
        model="mine/own",
        dialect=dialect,
        request_id="req_1",
    )


def read(chosen: AnswerReader, *pieces: bytes) -> bytes:
    return b"".join([*map(chosen.feed, pieces), chosen.end()])


BODY = b'{"id": "c1", "model": "served", "choices": [], "usage": {"prompt_tokens": 2}}'


def test_a_whole_body_is_the_upstreams_own_apart_from_the_name() -> None:
    expected = BODY.replace(b'"served"', b'"mine/own"')
    for cut in range(len(BODY)):
        chosen = reader()
        assert read(chosen, BODY[:cut], BODY[cut:]) == expected
        assert chosen.usage == ReportedUsage(input_tokens=2)
        assert chosen.headers == (("content-type", "application/json"),)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>hello</html>", BODY[:-1], b"[]", b"null", b'"text"', BODY + BODY),
        *(b"{}", b'{"error": {"message": "no"}}', b'{"choices": null}', b'{"content": []}'),
    ],
)
@pytest.mark.req("OAI-5")
def test_a_200_that_is_no_answer_is_invalid(body: bytes) -> None:
    with pytest.raises(Fault) as caught:
        read(reader(), body)
    assert caught.value.code is Code.UPSTREAM_INVALID


def test_a_whole_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_BODY_BYTES", 100)
    chosen = reader()
    chosen.feed(b"x" * 100)
    with pytest.raises(Fault) as caught:
        chosen.feed(b"x")
    assert caught.value.code is Code.UPSTREAM_INVALID


@pytest.mark.parametrize("content_type", ["text/html", "application/json", "text/plain"])
def test_a_stream_that_is_none_is_invalid(content_type: str) -> None:
    for read_it in (lambda r: r.feed(BODY), lambda r: r.end()):
        with pytest.raises(Fault) as caught:
            read_it(reader(headers=[("Content-Type", content_type)], is_stream=True))
        assert caught.value.code is Code.UPSTREAM_INVALID


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("content-type", "text/event-stream")],
        [("Content-Type", "Text/Event-Stream; charset=utf-8")],
    ],
)
def test_a_stream_is_released_as_one(headers: HeaderPairs) -> None:
    chosen = reader(headers=headers, is_stream=True)
    assert read(chosen, b'data: {"model":"x"}\n\n', b"data: [DONE]\n\n") == (
        b'data: {"model":"mine/own"}\n\ndata: [DONE]\n\n'
    )
    assert dict(chosen.headers)["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("status", [0, 100, 101, 301, 302, 304, 600, 999])
def test_a_status_that_answers_nothing_is_invalid(status: int) -> None:
    with pytest.raises(Fault) as caught:
        read(reader(status))
    assert caught.value.code is Code.UPSTREAM_INVALID


OPENAI_ERROR = b'{"error": {"message": "too hot", "type": "t", "param": null, "code": "c"}}'
ANTHROPIC_ERROR = b'{"type":"error","error":{"type":"overloaded_error","message":"too hot"}}'


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("status", [400, 401, 404, 418, 429, 500, 503, 529])
@pytest.mark.parametrize("is_stream", [True, False])
def test_an_error_of_the_callers_dialect_passes_as_it_is(status: int, is_stream: bool) -> None:
    assert read(reader(status, is_stream=is_stream), OPENAI_ERROR) == OPENAI_ERROR
    assert read(reader(status, dialect=Dialect.ANTHROPIC), ANTHROPIC_ERROR) == ANTHROPIC_ERROR


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    "body",
    [
        OPENAI_ERROR,
        ANTHROPIC_ERROR,
        b'{"error":"too hot"}',
        b'{"message":"too hot"}',
        b'{"detail":"too hot"}',
        b'{"object":"error","message":"too hot","code":400}',
    ],
)
def test_any_other_form_of_error_is_reshaped_and_keeps_its_message(body: bytes) -> None:
    openai: Any = json.loads(read(reader(503), body))
    assert openai["error"]["message"] == "too hot"
    assert set(openai["error"]) == {"message", "type", "param", "code"}
    anthropic: Any = json.loads(read(reader(503, dialect=Dialect.ANTHROPIC), body))
    assert anthropic["error"]["message"] == "too hot"
    assert anthropic["type"] == "error"


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    "body", [b"", b"<html>http://10.0.0.7:8000/private</html>", b"\xff\xfe", b"[]", b"{" * 100_000]
)
def test_of_a_page_that_is_no_error_nothing_is_repeated(body: bytes) -> None:
    error: Any = json.loads(read(reader(502), body))
    assert error["error"]["message"] == "the upstream answered with status 502"
    assert error["error"]["type"] == "upstream_error"


def test_a_huge_error_is_told_by_its_status() -> None:
    pieces = [b'{"error":{"message":"'] + [b"x" * 65_536] * 100
    error: Any = json.loads(read(reader(500), *pieces))
    assert error["error"]["message"] == "the upstream answered with status 500"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("7", True),
        ("Wed, 21 Oct 2026 07:28:00 GMT", True),
        ("1\r\nset-cookie: x", False),
        ("", False),
    ],
)
def test_retry_after_is_kept_where_it_is_sane(value: str, kept: bool) -> None:
    headers = [("Retry-After", value), ("set-cookie", "a=b"), ("server", "secret")]
    shown = dict(reader(429, headers).headers)
    assert shown.get("retry-after") == (value if kept else None)
    assert set(shown) <= {"content-type", "retry-after"}


@pytest.mark.req("OAI-5")
def test_529_is_kept_for_anthropic_callers_alone() -> None:
    assert status_for(529, Dialect.OPENAI) == 503
    assert status_for(529, Dialect.ANTHROPIC) == 529
    assert status_for(429, Dialect.OPENAI) == 429


def test_the_dialect_follows_the_path_and_for_models_the_version_header() -> None:
    assert dialect_of("/v1/messages") is Dialect.ANTHROPIC
    assert dialect_of("/v1/messages/count_tokens") is Dialect.ANTHROPIC
    assert dialect_of("/v1/models/x", has_anthropic_version=True) is Dialect.ANTHROPIC
    assert dialect_of("/v1/chat/completions", has_anthropic_version=True) is Dialect.OPENAI
    assert dialect_of("/v1/models") is Dialect.OPENAI
