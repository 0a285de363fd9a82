from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_shared.rpc.codes import (
    MAX_DETAILS_BYTES,
    RpcError,
    StatusCode,
    error_of,
    is_grpc,
    plain,
    status_trailers,
    timeout_s,
)

FAILURES = [code for code in StatusCode if code is not StatusCode.OK]


@given(st.sampled_from(FAILURES), st.text(max_size=300))
def test_a_status_is_heard_as_it_was_said_in_any_language(code: StatusCode, details: str) -> None:
    trailers = status_trailers(RpcError(code, details, [("x-why", "because")]))
    assert all(0x20 <= ord(c) <= 0x7E for _, value in trailers for c in value)
    heard = error_of(dict(trailers))
    assert heard is not None
    assert (heard.code, heard.details) == (code, details)
    assert heard.trailers == (("x-why", "because"),)


@given(st.text(alphabet="aé漢💥%", min_size=1, max_size=9))
def test_long_words_are_cut_behind_a_whole_character(words: str) -> None:
    details = words * (MAX_DETAILS_BYTES // len(words) + 1)
    trailers = dict(status_trailers(RpcError(StatusCode.INTERNAL, details)))
    assert MAX_DETAILS_BYTES - 12 < len(trailers["grpc-message"]) <= MAX_DETAILS_BYTES
    heard = error_of(trailers)
    assert heard is not None
    assert details.startswith(heard.details)


def test_a_lone_surrogate_is_said_as_a_question_mark() -> None:
    trailers = status_trailers(RpcError(StatusCode.INTERNAL, "a\ud800b"))
    assert trailers == [("grpc-status", "13"), ("grpc-message", "a?b")]


def test_an_end_without_error_has_no_words() -> None:
    assert status_trailers(None) == [("grpc-status", "0")]
    assert error_of(dict(status_trailers(None))) is None


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("", StatusCode.UNKNOWN),
        ("0", None),
        ("00", None),
        ("5", StatusCode.NOT_FOUND),
        ("17", StatusCode.UNKNOWN),
        ("-1", StatusCode.UNKNOWN),
        ("9" * 5000, StatusCode.UNKNOWN),
        ("ok", StatusCode.UNKNOWN),
        ("²", StatusCode.UNKNOWN),
    ],
)
def test_a_status_that_is_none_is_unknown(number: str, code: StatusCode | None) -> None:
    error = error_of({"grpc-status": number})
    assert (error and error.code) == code


@pytest.mark.parametrize(
    ("message", "details"),
    [
        ("plain", "plain"),
        ("%E2%82%AC", "€"),
        ("€".encode().decode("latin-1"), "€"),  # a server that does not encode
        ("100%", "100%"),
        ("%zz%41", "%zzA"),
        ("%ff", "\ufffd"),
    ],
)
def test_words_are_read_however_they_were_encoded(message: str, details: str) -> None:
    error = error_of({"grpc-status": "2", "grpc-message": message})
    assert error is not None
    assert error.details == details


def test_what_comes_with_a_status_is_kept_without_the_protocols_own() -> None:
    error = error_of(
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "5",
            "iop-code": "gone",
        }
    )
    assert error is not None
    assert error.trailers == (("iop-code", "gone"),)


def test_headers_of_one_name_are_joined_so_that_no_two_readers_differ() -> None:
    raw = [(b"authorization", b"Bearer a"), (b"x", b"\xff"), (b"authorization", b"Bearer b")]
    assert plain(raw) == {"authorization": "Bearer a,Bearer b", "x": "\xff"}


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("Application/gRPC; charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/grpcx", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_what_holds_grpc_messages_is_told_by_its_type(content_type: str, is_one: bool) -> None:
    assert is_grpc(content_type) is is_one


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("250m", 0.25),
        ("0n", 0.0),
        ("99999999H", 99999999 * 3600.0),
        ("100000000S", None),
        ("S", None),
        ("1", None),
        ("-1S", None),
        ("1.5S", None),
        ("²S", None),
        ("1s", None),
        ("", None),
        (None, None),
    ],
)
def test_a_timeout_is_read_or_is_none(text: str | None, seconds: float | None) -> None:
    assert timeout_s(text) == seconds


@given(st.text(max_size=12))
def test_no_timeout_is_an_error(text: str) -> None:
    found = timeout_s(text)
    assert found is None or found >= 0
