"""Upstreams that speak the three protocols in their own words, and readers of what callers get."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from iop.runtime_pb2 import RunEvent, TokenUsage, ToolCall
from iop_edge.gate.evidence import Piece, Said
from iop_edge.runtime.work import GatedReader, ReportedUsage, Surface
from iop_edge.serve.dialect.caller_protocols import CHAT, MESSAGES, RESPONSES, CallerProtocol
from iop_edge.serve.dialect.request import parse
from iop_edge.serve.openai.work import CallerWork
from iop_shared.ids import ModelId, RunId, Target

PROTOCOLS: dict[Surface, CallerProtocol] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "messages": MESSAGES,
}
SURFACES: tuple[Surface, ...] = ("chat", "responses", "messages")
USAGE = ReportedUsage(input_tokens=11, output_tokens=5)
Spoken = Sequence[Said]


def content(text: str) -> Said:
    return Said("content", text)


def thought(text: str) -> Said:
    return Said("reasoning", text)


def call(index: int, text: str, call_id: str = "", name: str = "") -> Said:
    return Said("tool_call", text, index, call_id, name)


def finish(reason: str = "stop") -> Said:
    return Said("finish", reason)


def work_for(surface: Surface, is_stream: bool = True, **more: Any) -> CallerWork:
    hello: Any = [{"role": "user", "content": "hello"}]
    said = {"input": hello} if surface == "responses" else {"messages": hello}
    body = json.dumps({"model": "mine", **said, "stream": is_stream, **more}).encode()
    return work_of(surface, body, is_stream)


def work_of(surface: Surface, body: bytes, is_stream: bool = True) -> CallerWork:
    protocol = PROTOCOLS[surface]
    return CallerWork(
        protocol,
        parse(body, protocol.fields, protocol.required),
        {},
        model=ModelId("mine"),
        headers=(),
        run_id=RunId("run_1"),
        request_id="req_1",
        created=77,
        is_stream=is_stream,
        auth_override=None,
    )


def relayed_reader(work: CallerWork, *, is_first: bool) -> GatedReader[bytes]:
    return work.gated_reader(200, (), Target("served"), is_first=is_first)


# -- upstreams that speak the caller's protocol --------------------------------------------------


def upstream(surface: Surface, is_stream: bool, spoken: Spoken) -> list[bytes]:
    """The events of a stream, or one body. A finish, where there is one, is the last thing said."""
    told = {"chat": _Chat, "responses": _Responses, "messages": _Messages}[surface](spoken)
    return told.stream() if is_stream else [told.body()]


def run_events(spoken: Spoken) -> list[RunEvent]:
    events = []
    for said in spoken:
        match said.kind:
            case "content":
                events.append(RunEvent(text_delta=said.text))
            case "reasoning":
                events.append(RunEvent(reasoning_delta=said.text))
            case "tool_call":
                piece = ToolCall(
                    index=said.call_index,
                    id=said.call_id,
                    name=said.name,
                    arguments_json=said.text,
                )
                events.append(RunEvent(tool_call_delta=piece))
            case "finish":
                events.append(RunEvent(usage=TokenUsage(input_tokens=7, output_tokens=3)))
                events.append(RunEvent(finish_reason=said.text))
    return events


def joined(spoken: Iterable[Said], kind: str) -> str:
    return "".join(said.text for said in spoken if said.kind == kind)


def _calls(spoken: Spoken) -> list[tuple[str, str, str]]:
    found: dict[int, list[str]] = {}
    for said in spoken:
        if said.kind == "tool_call":
            one = found.setdefault(said.call_index, [said.call_id, said.name, ""])
            one[2] += said.text
    return [(one[0], one[1], one[2]) for one in found.values()]


def _data(body: Any, event: str = "") -> bytes:
    line = f"event: {event}\n".encode() if event else b""
    return line + b"data: " + json.dumps(body).encode() + b"\n\n"


class _Chat:
    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken

    def _chunk(self, delta: Any, reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "up_1", "object": "chat.completion.chunk", "created": 5, "model": "served"}
        return _data({**head, "system_fingerprint": "f", "choices": [choice], **more})

    def stream(self) -> list[bytes]:
        events = [self._chunk({"role": "assistant", "content": ""})]
        for said in self.spoken:
            match said.kind:
                case "content":
                    events.append(self._chunk({"content": said.text}))
                case "reasoning":
                    events.append(self._chunk({"reasoning_content": said.text}))
                case "tool_call":
                    function = {"name": said.name or None, "arguments": said.text}
                    one = {"index": said.call_index, "id": said.call_id or None, "type": "function"}
                    events.append(self._chunk({"tool_calls": [{**one, "function": function}]}))
                case "finish":
                    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
                    events.append(self._chunk({}, said.text))
                    events.append(_data({"id": "up_1", "object": "chat.completion.chunk",
                                         "created": 5, "model": "served", "choices": [],
                                         "usage": usage}))  # fmt: skip
                    events.append(b"data: [DONE]\n\n")
        return events

    def body(self) -> bytes:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": joined(self.spoken, "content"),
            "reasoning_content": joined(self.spoken, "reasoning"),
        }
        if calls := _calls(self.spoken):
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, n, a in calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": joined(self.spoken, "finish"),
        }
        return json.dumps(
            {
                "id": "up_1", "object": "chat.completion", "created": 5, "model": "served",
                "choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3},
            }
        ).encode()  # fmt: skip


class _Messages:
    _REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}  # noqa: RUF012

    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken

    def _message(self, blocks: list[Any], reason: str | None) -> dict[str, Any]:
        return {
            "id": "up_1", "type": "message", "role": "assistant", "model": "served",
            "content": blocks, "stop_reason": reason, "stop_sequence": None,
            "usage": {"input_tokens": 7, "output_tokens": 3},
        }  # fmt: skip

    def stream(self) -> list[bytes]:
        events = [_typed("message_start", message=self._message([], None)), _typed("ping")]
        open_block: tuple[str, int] | None = None
        index = -1
        for said in self.spoken:
            kind = (said.kind, said.call_index)
            if open_block not in (None, kind):
                events.append(_typed("content_block_stop", index=index))
            if said.kind == "finish":
                delta: Any = {"stop_reason": self._REASONS[said.text], "stop_sequence": None}
                usage = {"output_tokens": 3}
                events.append(_typed("message_delta", delta=delta, usage=usage))
                events.append(_typed("message_stop"))
                break
            if open_block != kind:
                open_block = kind
                index += 1
                block: Any = {
                    "content": {"type": "text", "text": ""},
                    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
                    "tool_call": {
                        "type": "tool_use", "id": said.call_id, "name": said.name, "input": {},
                    },
                }[said.kind]  # fmt: skip
                events.append(_typed("content_block_start", index=index, content_block=block))
            delta = {
                "content": {"type": "text_delta", "text": said.text},
                "reasoning": {"type": "thinking_delta", "thinking": said.text},
                "tool_call": {"type": "input_json_delta", "partial_json": said.text},
            }[said.kind]
            events.append(_typed("content_block_delta", index=index, delta=delta))
        return events

    def body(self) -> bytes:
        blocks: list[Any] = []
        if text := joined(self.spoken, "reasoning"):
            blocks.append({"type": "thinking", "thinking": text, "signature": "s"})
        if text := joined(self.spoken, "content"):
            blocks.append({"type": "text", "text": text})
        blocks += [
            {"type": "tool_use", "id": i, "name": n, "input": json.loads(a)}
            for i, n, a in _calls(self.spoken)
        ]
        reason = self._REASONS[joined(self.spoken, "finish")]
        return json.dumps(self._message(blocks, reason)).encode()


def _typed(kind: str, **fields: Any) -> bytes:
    return _data({"type": kind, **fields}, kind)


class _Responses:
    """Tells every item from its beginning to its end; a summary is a reasoning item's own part."""

    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken
        self.events: list[bytes] = []
        self.items: list[dict[str, Any]] = []

    def _response(self, status: str) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": "up_1", "object": "response", "created_at": 5, "model": "served",
            "status": status, "error": None, "incomplete_details": reason, "instructions": None,
            "metadata": {}, "output": self.items if status != "in_progress" else [],
            "parallel_tool_calls": True, "temperature": 0.5, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "usage": None,
        }  # fmt: skip

    def _tell(self, kind: str, **fields: Any) -> None:
        number = len(self.events)
        self.events.append(_typed(kind, sequence_number=number, **fields))

    def stream(self) -> list[bytes]:
        self._tell("response.created", response=self._response("in_progress"))
        self._tell("response.in_progress", response=self._response("in_progress"))
        open_item: tuple[str, int] | None = None
        for said in self.spoken:
            kind = (said.kind, said.call_index)
            if open_item not in (None, kind):
                self._close()
            if said.kind == "finish":
                status = "incomplete" if said.text == "length" else "completed"
                self._tell(f"response.{status}", response=self._response(status))
                break
            if open_item != kind:
                open_item = kind
                self._open(said)
            self._more(said)
        return self.events

    def _place(self) -> dict[str, Any]:
        index = len(self.items) - 1
        return {"item_id": self.items[-1]["id"], "output_index": index}

    def _open(self, said: Said) -> None:
        number = len(self.items)
        item: dict[str, Any] = {
            "content": {"id": f"up_msg_{number}", "type": "message", "role": "assistant",
                        "status": "in_progress", "content": []},
            "reasoning": {"id": f"up_rs_{number}", "type": "reasoning", "summary": []},
            "tool_call": {"id": f"up_fc_{number}", "type": "function_call", "call_id": said.call_id,
                          "name": said.name, "arguments": "", "status": "in_progress"},
        }[said.kind]  # fmt: skip
        self.items.append(item)
        self._tell("response.output_item.added", output_index=number, item=item)
        if said.kind == "content":
            part = {"type": "output_text", "text": "", "annotations": []}
            self._tell("response.content_part.added", **self._place(), content_index=0, part=part)
        elif said.kind == "reasoning":
            part = {"type": "summary_text", "text": ""}
            self._tell(
                "response.reasoning_summary_part.added", **self._place(), summary_index=0, part=part
            )

    def _more(self, said: Said) -> None:
        item = self.items[-1]
        if said.kind == "tool_call":
            item["arguments"] += said.text
            self._tell("response.function_call_arguments.delta", **self._place(), delta=said.text)
            return
        held = "content" if said.kind == "content" else "summary"
        kind = "output_text" if said.kind == "content" else "summary_text"
        if not item[held]:
            item[held] = [{"type": kind, "text": ""}]
            if said.kind == "content":
                item[held][0]["annotations"] = []
        item[held][0]["text"] += said.text
        if said.kind == "content":
            self._tell(
                "response.output_text.delta",
                **self._place(), content_index=0, delta=said.text, logprobs=[],
            )  # fmt: skip
        else:
            self._tell(
                "response.reasoning_summary_text.delta",
                **self._place(), summary_index=0, delta=said.text,
            )  # fmt: skip

    def _close(self) -> None:
        item, place = self.items[-1], self._place()
        if item["type"] == "message":
            part = item["content"][0]
            self._tell("response.output_text.done", **place, content_index=0, text=part["text"],
                       logprobs=[])  # fmt: skip
            self._tell("response.content_part.done", **place, content_index=0, part=part)
        elif item["type"] == "reasoning":
            part = item["summary"][0]
            self._tell("response.reasoning_summary_text.done", **place, summary_index=0,
                       text=part["text"])  # fmt: skip
            self._tell("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
        else:
            self._tell("response.function_call_arguments.done", **place, name=item["name"],
                       arguments=item["arguments"])  # fmt: skip
        if "status" in item:
            item["status"] = "completed"
        self._tell("response.output_item.done", output_index=place["output_index"], item=item)

    def body(self) -> bytes:
        self.stream()
        status = "incomplete" if joined(self.spoken, "finish") == "length" else "completed"
        usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
        return json.dumps({**self._response(status), "usage": usage}).encode()


# -- callers -------------------------------------------------------------------------------------


@dataclass
class Heard:
    """What a caller has read, once all that a protocol promises was seen to be kept."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    id: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)


def heard(surface: Surface, is_stream: bool, answer: bytes) -> Heard:
    if not is_stream:
        return _body_heard(surface, json.loads(answer))
    reader = {"chat": _chat_heard, "responses": _response_heard, "messages": _message_heard}
    return reader[surface](events_of(answer))


def events_of(answer: bytes) -> list[Any]:
    """The decoded events; the text [DONE] for the marker of chat completions."""
    assert answer.endswith(b"\n\n")
    events = []
    for event in answer.split(b"\n\n")[:-1]:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n"))
        data = fields[b"data"]
        body = "[DONE]" if data == b"[DONE]" else json.loads(data)
        assert b"event" not in fields or fields[b"event"].decode() == body["type"]
        events.append(body)
    return events


def _chat_heard(events: list[Any]) -> Heard:
    assert [event == "[DONE]" for event in events] == [False] * (len(events) - 1) + [True]
    out, calls = Heard(), dict[int, list[str]]()
    roles, finishes = [], []
    assert len({(event["id"], event["created"], event["model"]) for event in events[:-1]}) == 1
    for event in events[:-1]:
        assert event["object"] == "chat.completion.chunk"
        for choice in event["choices"]:
            assert not finishes
            assert choice["index"] == 0
            delta = choice["delta"]
            out.content += delta.get("content") or ""
            out.reasoning += delta.get("reasoning_content") or ""
            roles += [delta["role"]] if "role" in delta else []
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
            for piece in delta.get("tool_calls") or ():
                one = calls.setdefault(piece["index"], ["", "", ""])
                one[0] += piece.get("id") or ""
                one[1] += piece["function"].get("name") or ""
                one[2] += piece["function"].get("arguments") or ""
    assert roles == ["assistant"]
    assert sorted(calls) == list(range(len(calls)))
    out.calls = [(one[0], one[1], one[2]) for _, one in sorted(calls.items())]
    (out.finish,) = finishes
    out.id = events[0]["id"]
    assert events[0]["model"] == "mine"
    return out


def _message_heard(events: list[Any]) -> Heard:
    out = Heard()
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    for kind in ("message_start", "message_delta", "message_stop"):
        assert kinds.count(kind) == 1
    blocks: list[Any] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open = True
                blocks.append({"input_json": "", **event["content_block"]})
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking",
                        "input_json_delta": "input_json"}[delta["type"]]  # fmt: skip
                blocks[-1][name] += delta.get("partial_json", delta.get(name))
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
            case "message_start":
                out.id = event["message"]["id"]
                assert event["message"]["model"] == "mine"
            case "message_delta":
                assert not is_open
                out.finish = _FINISHES[event["delta"]["stop_reason"]]
                assert event["usage"]["output_tokens"] is not None
    return _blocks_heard(out, blocks)


_FINISHES = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def _blocks_heard(out: Heard, blocks: list[Any]) -> Heard:
    for block in blocks:
        if block["type"] == "text":
            out.content += block["text"]
        elif block["type"] == "thinking":
            out.reasoning += block["thinking"]
        else:
            given = block.get("input_json") or json.dumps(block["input"])
            out.calls.append((block["id"], block["name"], given))
    return out


def _response_heard(events: list[Any]) -> Heard:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.created") == 1
    assert "response.in_progress" not in kinds[2:]
    ends = [kind for kind in kinds if kind in ("response.completed", "response.incomplete")]
    assert ends == kinds[-1:]
    items: list[Any] = []
    texts: list[str] = []
    parts = done = 0
    for event in events[1:-1]:
        kind = event["type"]
        if kind == "response.in_progress":
            continue
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            assert all("done" in item for item in items)
            items.append({"id": event["item"]["id"]})
            parts, done, texts = 0, 0, []
            continue
        assert event["output_index"] == len(items) - 1
        if kind == "response.output_item.done":
            assert event["item"]["id"] == items[-1]["id"]
            items[-1]["done"] = event["item"]
            assert done == parts
            continue
        assert event["item_id"] == items[-1]["id"]
        place = event.get("content_index", event.get("summary_index"))
        if kind.endswith("part.added"):
            assert place == parts
            parts += 1
            texts.append("")
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == "".join(texts)
        elif kind.endswith("arguments.delta"):
            texts.append(event["delta"])
        elif kind.endswith(".delta"):
            assert place == parts - 1
            texts[-1] += event["delta"]
        elif kind.endswith("text.done"):
            assert event["text"] == texts[-1]
        else:
            assert kind.endswith("part.done")
            assert event["part"]["text"] == texts[-1]
            done += 1
    last = events[-1]["response"]
    assert last["output"] == [item["done"] for item in items]
    assert last["id"] == events[0]["response"]["id"]
    assert last["created_at"] == events[0]["response"]["created_at"]
    return _body_heard("responses", last)


def _body_heard(surface: Surface, body: Any) -> Heard:
    out = Heard(id=body["id"])
    assert body["model"] == "mine"
    if surface == "chat":
        (choice,) = body["choices"]
        message = choice["message"]
        out.content = message["content"] or ""
        out.reasoning = message.get("reasoning_content") or ""
        out.finish = choice["finish_reason"]
        out.calls = [
            (one["id"], one["function"]["name"], one["function"]["arguments"])
            for one in message.get("tool_calls") or ()
        ]
        return out
    if surface == "messages":
        out.finish = _FINISHES[body["stop_reason"]]
        return _blocks_heard(out, body["content"])
    for item in body["output"]:
        parts = [part["text"] for part in [*item.get("content", ()), *item.get("summary", ())]]
        if item["type"] == "message":
            out.content += "".join(parts)
        elif item["type"] == "reasoning":
            out.reasoning += "".join(parts)
        else:
            out.calls.append((item["call_id"], item["name"], item["arguments"]))
    out.finish = "tool_calls" if out.calls else "stop"
    if body["status"] == "incomplete":
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        out.finish = "length"
    return out


def read_first(work: CallerWork, surface: Surface, path: str, spoken: Spoken) -> list[Piece]:
    """The pieces of a first attempt, which ends without its end where `spoken` has no finish."""
    return _read(work, surface, path, spoken, is_first=True)


def read_later(work: CallerWork, surface: Surface, path: str, spoken: Spoken) -> list[Piece]:
    return _read(work, surface, path, spoken, is_first=False)


def _read(
    work: CallerWork, surface: Surface, path: str, spoken: Spoken, *, is_first: bool
) -> list[Piece]:
    pieces: list[Piece] = []
    if path == "normalized":
        run = work.gated_run_reader(is_first=is_first)
        for event in run_events(spoken):
            pieces += run.feed(event)
        end = run.end
    else:
        reader = relayed_reader(work, is_first=is_first)
        for chunk in upstream(surface, work.is_stream, spoken):
            pieces += reader.feed(chunk)
        end = reader.end
    if any(said.kind == "finish" for said in spoken):
        pieces += end()
    return pieces
