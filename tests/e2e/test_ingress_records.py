"""Whatever ends a run, there is one record of it, and the same one everywhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from e2e_harness import CALLER_TOKEN, PROMPT_CANARY, Edge, RawCall
from ingress_rig import CANARIES, PROVIDER_TOKEN, SECOND_TOKEN, Rig
from ingress_upstreams import COMPLETION

from iop_edge.pool.estimate import estimate_tokens
from iop_edge.runtime.usage import UsageRecord

pytestmark = pytest.mark.e2e

TRAILING_SPACE = " "


@pytest.fixture
async def edge(ingress: Rig) -> AsyncIterator[Edge]:
    async with aiohttp.ClientSession() as http:
        edge = Edge(ingress.site, http)
        yield edge
        await edge.until_idle()


async def ask(
    edge: Edge, request_id: str, model: str, *, token: str = CALLER_TOKEN, **more: Any
) -> int:
    """Ask for a chat completion to its end; the status."""
    messages = [{"role": "user", "content": PROMPT_CANARY}]
    async with edge.http.post(
        f"{edge.site.openai_url}/chat/completions",
        json={"model": model, "messages": messages, **more},
        headers={"authorization": f"Bearer {token}", "x-request-id": request_id},
    ) as answer:
        await answer.read()
        return answer.status


@pytest.mark.req("POOL-6", "POOL-10", "OAI-3")
async def test_each_end_of_a_run_has_its_record(ingress: Rig, edge: Edge) -> None:
    await ask(edge, "rec-completed", "fine")
    await ask(edge, "rec-second", "fine", token=SECOND_TOKEN)
    await ask(edge, "rec-stream", "fine", stream=True)
    await ask(edge, "rec-cut", "bad-stop", stream=True)
    await ask(edge, "rec-closed", "bad-close")
    await ask(edge, "rec-429", "bad-429-openai")
    await ask(edge, "rec-context", "window-8k", max_tokens=9_000)
    await ask(edge, "rec-fine-again", "bad-but-fine")
    records = await ingress.records(
        "rec-completed", "rec-second", "rec-stream", "rec-cut", "rec-closed", "rec-429",
        "rec-context",
    )  # fmt: skip
    assert all(set(record) == set(UsageRecord.__struct_fields__) for record in records)
    assert [record["end"] for record in records] == [
        "completed", "completed", "completed", "error:upstream_closed", "error:upstream_closed",
        "error:upstream_429", "error:context_length_exceeded",
    ]  # fmt: skip
    assert [record["attempts"] for record in records] == [1, 1, 1, 1, 1, 1, 0]
    assert [record["usage_source"] for record in records] == [
        "reported", "reported", "estimated", "estimated", "none", "none", "none",
    ]  # fmt: skip
    whole, second, stream, cut, *others = records
    # The upstream reported that it wrote nothing, and so it is told.
    assert (whole["input_tokens"], whole["output_tokens"]) == (7, 0)
    assert (second["token_ref"], second["principal_ref"]) == ("second", "team-second")
    said = estimate_tokens([" ".join(COMPLETION.split()) + TRAILING_SPACE]).estimate
    assert stream["output_tokens"] == said
    assert abs(cut["output_tokens"] - said) <= 1
    assert stream["input_tokens"] >= 1
    for record in (stream, cut):
        assert record["first_byte_ms"] <= record["duration_ms"]
    assert {(r["input_tokens"], r["output_tokens"]) for r in others} == {(None, None)}
    assert records[-1]["provider_id"] is None
    assert records[0]["attribution"] == {"kind": "provider", "id": "p-fine"}


@pytest.mark.req("POOL-14")
async def test_usage_is_never_asked_for_in_the_callers_name(ingress: Rig, edge: Edge) -> None:
    before = len(ingress.upstream.asked)
    await ask(edge, "rec-not-asked", "fine", stream=True)
    [asked] = ingress.upstream.asked[before:]
    assert set(asked.body) == {"model", "messages", "stream"}


@pytest.mark.req("NODE-7", "POOL-6")
async def test_a_caller_who_leaves_is_recorded_with_what_it_was_given(
    ingress: Rig, edge: Edge
) -> None:
    body = {
        "model": "endless",
        "messages": [{"role": "user", "content": PROMPT_CANARY}],
        "stream": True,
    }
    call = await RawCall.start(f"{edge.site.openai_url}/chat/completions", body)
    await call.until(b"on ")
    head = call.received.partition(b"\r\n\r\n")[0].decode()
    call.hang_up()
    found = re.search(r"x-request-id: (\S+)", head)
    assert found is not None
    [record] = await ingress.records(found[1])
    assert (record["end"], record["usage_source"]) == ("cancelled", "estimated")
    assert record["output_tokens"] >= 1


@pytest.mark.req("OPS-3", "SEC-1")
async def test_log_file_metrics_and_admin_tell_the_same_runs(ingress: Rig, edge: Edge) -> None:
    await ask(edge, "rec-last", "fine")
    await edge.until_idle()
    await ingress.records("rec-last")
    folder = edge.site.group.folder
    lines = [json.loads(line) for line in (folder / "usage.jsonl").read_text().splitlines()]
    logged = [
        line
        for text in (folder / "edge.log").read_text().splitlines()
        if (line := json.loads(text))["event"] == "run_finished"
    ]
    names = UsageRecord.__struct_fields__
    assert [{name: line[name] for name in names} for line in logged] == lines
    assert max(Counter(line["run_id"] for line in lines).values()) == 1
    assert {line["level"] for line in logged} == {"info"}
    url = f"http://127.0.0.1:{edge.site.ports.metrics}/metrics"
    async with edge.http.get(url) as answer:
        exposed = await answer.text()
    counted = sum(
        float(line.rsplit(" ", 1)[1])
        for line in exposed.splitlines()
        if line.startswith("iop_edge_runs_total{")
    )
    assert counted == len(lines)
    newest = (await edge.admin("/runs?limit=1"))["runs"][0]["run"]
    assert newest == lines[-1]


@pytest.mark.req("SEC-1")
async def test_no_token_prompt_or_completion_is_on_any_surface_or_in_any_file(
    ingress: Rig, edge: Edge
) -> None:
    headers = {
        "authorization": f"Bearer {SECOND_TOKEN}",
        "x-iop-provider-authorization": PROVIDER_TOKEN,
    }
    shown: dict[str, str] = {}
    for model in ("fine", "bad-html", "bad-400-html", "nowhere", "bad-but-fine"):
        for stream in (True, False):
            body = {
                "model": model,
                "messages": [{"role": "user", "content": PROMPT_CANARY}],
                "stream": stream,
                "metadata": {"token": SECOND_TOKEN},
                "temperature": PROMPT_CANARY if model == "nowhere" else 0,
            }
            url = f"{edge.site.openai_url}/chat/completions"
            async with edge.http.post(url, json=body, headers=headers) as answer:
                said = await answer.text()
                shown[f"error of {model}"] = said if answer.status >= 400 else ""
    # A token in every place where a careless caller may put it.
    for place in (f"/models/{SECOND_TOKEN}", f"/models?key={SECOND_TOKEN}", "/models"):
        async with edge.http.get(f"{edge.site.openai_url}{place}", headers=headers):
            pass
    async with edge.http.get(
        f"{edge.site.openai_url}/models", headers={"x-api-key": "x"}
    ) as answer:
        shown["refusal"] = await answer.text()
    async with edge.http.get(f"{ingress.root_url}/openapi.json") as answer:
        shown["openapi"] = await answer.text()
    for path in ("/status", "/config", "/runs?limit=256", "/refreshes"):
        async with edge.http.get(f"{edge.site.admin_url}{path}") as answer:
            shown[path] = await answer.text()
    async with edge.http.get(f"http://127.0.0.1:{edge.site.ports.metrics}/metrics") as answer:
        shown["metrics"] = await answer.text()
    for name in ("status", "config show"):
        ran = edge.site.iop_edge(*name.split(), "--json")
        shown[name] = ran.stdout + ran.stderr
    for file in [*edge.site.group.folder.glob("*.log"), *edge.site.group.folder.glob("*.jsonl")]:
        shown[file.name] = file.read_text()
    found = {
        (where, canary) for where, text in shown.items() for canary in CANARIES if canary in text
    }
    assert not found
    assert len(shown) > 10
