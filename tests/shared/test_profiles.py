"""How an operation's URL is joined (PROF-5)."""

from __future__ import annotations

import pytest

from iop_shared.profiles import DEFAULT_PATHS, join_url


@pytest.mark.req("PROF-5")
@pytest.mark.parametrize(
    ("base", "path", "joined"),
    [
        ("http://h", "/v1/models", "http://h/v1/models"),
        ("http://h/", "/v1/models", "http://h/v1/models"),
        ("http://h/v1", "/v1/models", "http://h/v1/models"),
        ("http://h/v1/", "/v1/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/api/v1", "/v1/models", "http://h/api/v1/models"),
        ("http://h/api/v1/", "/v1/models", "http://h/api/v1/models"),
        ("http://h/proxy", "/v1/models", "http://h/proxy/v1/models"),
        ("http://h/proxy/", "/v1/models", "http://h/proxy/v1/models"),
        ("http://h/v1", "/anthropic/v1/models", "http://h/anthropic/v1/models"),
        ("http://h/v1", "/list", "http://h/v1/list"),
        ("http://h/v10", "/v1/models", "http://h/v10/v1/models"),
        ("http://h/av1", "/v1/models", "http://h/av1/v1/models"),
        ("http://h/v1", "/v1", "http://h/v1"),
        ("http://v1", "/v1/models", "http://v1/v1/models"),
        ("http://v1/v1/", "/v1/models", "http://v1/v1/models"),
        ("http://h", "https://other/v1/x?api-version=1", "https://other/v1/x?api-version=1"),
        ("http://h/v1", "HTTP://other/v1", "HTTP://other/v1"),
    ],
)
def test_a_path_is_joined_exactly_once(base: str, path: str, joined: str) -> None:
    assert join_url(base, path) == joined


@pytest.mark.req("PROF-5")
def test_operation_paths_are_inputs_below_v1() -> None:
    assert DEFAULT_PATHS == {
        "models": "/v1/models",
        "chat_completions": "/v1/chat/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
        "count_tokens": "/v1/messages/count_tokens",
    }
