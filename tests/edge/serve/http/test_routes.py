"""Which handler a request goes to, and what comes back where none does."""

import json

import pytest

from iop_edge.serve.http.errors import render_fault, request_id_of, retry_after_s
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.routes import Route, Router
from iop_shared.errors import SHAPES, Code, Fault
from tests.edge.serve.rig import Answer


class Caller:
    """A connection that keeps what is written to it."""

    is_write_paused = False

    def __init__(self) -> None:
        self.written = b""

    async def writable(self) -> None:
        raise AssertionError("it always is")

    def write(self, data: bytes) -> None:
        self.written += data

    def keeps_open_after(self, request: Request) -> bool:
        return request.keeps_open

    def want_body(self) -> None:
        raise AssertionError("no body is needed here")

    def answered(self, request: Request) -> None:
        assert request.is_answered


async def ask(
    router: Router, method: str, path: str, headers: list[tuple[bytes, bytes]] | None = None
) -> Answer:
    caller = Caller()
    await router(Request(caller, method=method, path=path, pairs=headers or []))
    head, _, body = caller.written.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    named = dict(line.split(": ", 1) for line in lines[1:])
    return Answer(int(lines[0].split(" ")[1]), named, body)


async def name_itself(request: Request) -> None:
    await request.respond(200, f"{request.path}|{request.tail}".encode())


async def fail(request: Request) -> None:
    raise RuntimeError("the text of a caller")


ROUTER = Router(
    [
        Route(method="POST", path="/do", handler=name_itself, takes_json=True),
        Route(method="GET", path="/things", handler=name_itself),
        Route(method="GET", path="/things/{tail}", handler=name_itself),
        Route(method="GET", path="/fail", handler=fail),
    ]
)


async def test_a_path_is_matched_exactly() -> None:
    assert (await ask(ROUTER, "GET", "/things")).body == b"/things|"
    for path in ("/thing", "/things/", "//things", "/Things", ""):
        answer = await ask(ROUTER, "GET", path)
        assert (answer.status, answer.error()["code"]) == (404, "not_found")


@pytest.mark.req("OAI-1")
async def test_a_tail_may_hold_slashes() -> None:
    assert (await ask(ROUTER, "GET", "/things/a/b/c")).body == b"/things/a/b/c|a/b/c"


@pytest.mark.req("OAI-5")
async def test_another_method_is_405_and_says_which_are_allowed() -> None:
    answer = await ask(ROUTER, "DELETE", "/things")
    assert (answer.status, answer.error()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_head_is_answered_where_get_is() -> None:
    assert (await ask(ROUTER, "HEAD", "/things")).status == 200


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (b"application/json", 200),
        (b"Application/JSON; charset=utf-8", 200),
        (b"text/plain", 415),
        (b"application/x-www-form-urlencoded", 415),
        (b"application/jsonp", 415),
        (None, 415),
    ],
)
async def test_a_body_must_be_declared_as_json(content_type: bytes | None, status: int) -> None:
    headers = [] if content_type is None else [(b"content-type", content_type)]
    assert (await ask(ROUTER, "POST", "/do", headers)).status == status


@pytest.mark.req("OAI-5", "SEC-1")
async def test_a_failure_of_our_own_is_500_and_tells_no_text_of_the_caller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = await ask(ROUTER, "GET", "/fail")
    assert (answer.status, answer.error()["code"]) == (500, "internal")
    assert b"text of a caller" not in answer.body
    written = capsys.readouterr()
    assert "text of a caller" not in written.out + written.err


async def test_every_answer_carries_a_request_id() -> None:
    given = [(b"x-request-id", b"mine-1")]
    assert (await ask(ROUTER, "GET", "/things", given)).headers["x-request-id"] == "mine-1"
    assert (await ask(ROUTER, "GET", "/nothing", given)).headers["x-request-id"] == "mine-1"
    first = (await ask(ROUTER, "GET", "/things")).headers["x-request-id"]
    second = (await ask(ROUTER, "GET", "/things")).headers["x-request-id"]
    assert first != second


@pytest.mark.parametrize(
    "bad", [b"", b"a b", b"a\r\nset-cookie: x", b"x" * 129, b"\xc3\xa9", b"a\n"]
)
def test_a_request_id_that_is_not_plain_is_replaced(bad: bytes) -> None:
    assert request_id_of({b"x-request-id": bad}).startswith("req_")


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("code", list(Code))
def test_every_code_is_rendered_in_both_dialects(code: Code) -> None:
    fault = Fault(code, "what happened", param="model")
    shape = SHAPES[code]
    openai = render_fault(fault, "/v1/chat/completions", {}, "req_1")
    assert openai.status == shape.status
    assert json.loads(openai.body) == {
        "error": {
            "message": "what happened",
            "type": shape.openai_type,
            "param": "model",
            "code": code.value,
        }
    }
    for path, headers in (
        ("/v1/messages", {}),
        ("/v1/messages/count_tokens", {}),
        ("/v1/models", {b"anthropic-version": b"2023-06-01"}),
    ):
        anthropic = render_fault(fault, path, headers, "req_1")
        assert anthropic.status == shape.status
        assert json.loads(anthropic.body) == {
            "type": "error",
            "error": {"type": shape.anthropic_type, "message": "what happened"},
            "request_id": "req_1",
        }
    assert (b"retry-after" in dict(openai.headers)) == shape.sends_retry_after


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, 1), (0.0, 1), (-3.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (30.0, 30), (float("inf"), 1)],
)
def test_retry_after_is_a_whole_number_of_seconds_and_at_least_one(
    given: float | None, seconds: int
) -> None:
    assert retry_after_s(Fault(Code.QUEUE_FULL, "full", retry_after_s=given)) == seconds
    assert retry_after_s(Fault(Code.NODE_LOST, "lost", retry_after_s=given)) is None
