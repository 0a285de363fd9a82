from __future__ import annotations

import grpc
import pytest

from iop_shared.errors import SHAPES, Code, Fault

ANTHROPIC_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
    "timeout_error",
}


@pytest.mark.req("OAI-5")
def test_every_code_has_a_shape_and_no_shape_is_without_a_code() -> None:
    assert set(SHAPES) == set(Code)


@pytest.mark.req("OAI-5")
@pytest.mark.parametrize("code", list(Code))
def test_every_shape_is_one_that_each_dialect_knows(code: Code) -> None:
    shape = SHAPES[code]
    assert 400 <= shape.status < 600
    assert shape.anthropic_type in ANTHROPIC_TYPES
    assert shape.grpc_status in grpc.StatusCode.__members__
    assert shape.is_retryable or not shape.sends_retry_after


def test_a_fault_shows_its_code_and_its_sentence_and_nothing_else() -> None:
    fault = Fault(Code.QUEUE_FULL, "16 of 16 places are taken", retry_after_s=2.0)
    assert repr(fault) == "Fault(queue_full: 16 of 16 places are taken)"
    assert fault.shape.status == 429
