"""Ollama's chat API as the types of its official Python client (0.6.3) have it.

Each request of the samples was validated by that client's `ChatRequest`, and is what the client
itself sends for the same question, `truncate`, `shift` and an empty `content` aside; each answer
was written by its `ChatResponse`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from iop.runtime_pb2 import RunRequest
from iop_node.adapters.ollama_chat import ChatReader, chat_request

SAMPLES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "samples" / "ollama_chat.json").read_text()
)


def named(kind: str) -> Any:
    return pytest.mark.parametrize(
        "sample", [pytest.param(sample, id=sample["name"]) for sample in SAMPLES[kind]]
    )


@pytest.mark.req("NODE-5")
@named("requests")
def test_a_run_is_asked_as_the_official_client_would(sample: dict[str, Any]) -> None:
    run = ParseDict(sample["run"], RunRequest())
    assert json.loads(chat_request(run, sample["context_size"])) == sample["body"]


@pytest.mark.req("NODE-5")
@named("answers")
def test_an_answer_that_the_official_types_write_is_understood(sample: dict[str, Any]) -> None:
    reader = ChatReader()
    events = [event for line in sample["lines"] for event in reader.read(line.encode())]
    events.append(reader.end())
    assert [_shown(event) for event in events] == sample["events"]


def _shown(event: Any) -> dict[str, dict[str, Any]]:
    """What an event says. An id that the upstream did not give is made anew each time."""
    said = {name: getattr(event, name) for name in event.__struct_fields__ if name != "id"}
    return {
        type(event).__name__: {
            name: value for name, value in said.items() if value is not None and value != ""
        }
    }
