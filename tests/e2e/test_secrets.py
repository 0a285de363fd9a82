"""Canaries planted in tokens, headers and prompts appear in nothing that the system wrote.

The logs and usage files of every site are searched at its end as well; here the live surfaces are.
"""

from __future__ import annotations

import hashlib

import pytest
from e2e_harness import (
    UPSTREAM_KEY,
    Config,
    Edge,
    Upstream,
    canaries,
    chat,
    leaks,
    prompt,
    write,
)

pytestmark = pytest.mark.e2e


@pytest.mark.req("SEC-1")
async def test_no_canary_is_in_any_log_report_status_or_metric(
    edge: Edge, upstream: Upstream, config: Config
) -> None:
    await upstream.plan("broken", cut_after=2)
    await upstream.plan("refused", status=500)
    for tag in ("whole", "broken", "refused"):
        for stream in (True, False):
            async with edge.call(chat("pair", prompt(tag), stream=stream)) as call:
                await call.rest()
    # A file that is refused, with a secret where none may stand.
    bad = {**config, "nodes": [dict(node) for node in config["nodes"]]}
    bad["nodes"][0]["token"] = UPSTREAM_KEY
    write(edge.site, bad)
    _, rejected = await edge.refresh()
    assert rejected["status"] == "rejected"
    ran = edge.site.iop_edge("config", "refresh")

    shown = [str(rejected), ran.stdout, ran.stderr]
    for path in ("/status", "/config", "/runs?limit=100", "/refreshes"):
        async with edge.http.get(f"{edge.site.admin_url}{path}") as answer:
            shown.append(await answer.text())
    async with edge.http.get(f"http://127.0.0.1:{edge.site.ports.metrics}/metrics") as answer:
        shown.append(await answer.text())
    found = [canary for canary in canaries(edge.site) for text in shown if canary in text]
    assert not found
    assert not leaks(edge.site)


@pytest.mark.req("CFG-2")
async def test_the_upstream_gets_the_key_that_only_the_node_knows(
    edge: Edge, upstream: Upstream
) -> None:
    async with edge.call(chat("pair", prompt("key"))) as call:
        assert b"200 OK" in await call.rest()
    [opened] = await upstream.seen("key", "opened")
    assert opened["api_key_sha256"] == hashlib.sha256(UPSTREAM_KEY.encode()).hexdigest()
