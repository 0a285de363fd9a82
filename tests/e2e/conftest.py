"""Processes that tests share: one upstream, one model server, one edge with two nodes.

Tests that kill or reconfigure beyond repair make a site of their own.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from demo import model_server
from demo.processes import Group
from demo.site import Site

sys.path.insert(0, str(Path(__file__).parent))

from e2e_harness import (
    CALLER_TOKEN,
    Config,
    Edge,
    Upstream,
    running_site,
    site_config,
    start_nodes,
    write,
)
from ingress_rig import Rig, ingress_rig
from ingress_scripts import SCRIPTS


@pytest.fixture(scope="session")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = Group(tmp_path_factory.mktemp("upstreams"))
    yield group
    group.stop()


@pytest.fixture(scope="session")
def small_upstream_url(upstreams: Group) -> str:
    url: str = upstreams.start_announced("small", "demo.small_upstream")["listening"]
    return url


@pytest.fixture(scope="session")
def real_model(upstreams: Group) -> dict[str, Any] | None:
    """What the model server announces, or None where the model package cannot be had."""
    if not model_server.can_run():
        return None
    return upstreams.start_announced("model", "demo.model_server")


@pytest.fixture(scope="session")
def shared_site(
    tmp_path_factory: pytest.TempPathFactory,
    small_upstream_url: str,
    real_model: dict[str, Any] | None,
) -> Iterator[tuple[Site, Config]]:
    with running_site(tmp_path_factory.mktemp("shared")) as site:
        config = site_config(site, small_upstream_url, real_model=real_model)
        write(site, config)
        site.start_edge()
        start_nodes(site, "a", "b")
        yield site, config


@pytest.fixture
async def upstream(small_upstream_url: str) -> AsyncIterator[Upstream]:
    async with aiohttp.ClientSession(small_upstream_url) as http:
        yield Upstream(http)


@pytest.fixture
def config(shared_site: tuple[Site, Config]) -> Config:
    """The config that the shared edge runs at the beginning of every test."""
    return shared_site[1]


@pytest.fixture
async def edge(shared_site: tuple[Site, Config]) -> AsyncIterator[Edge]:
    """The shared edge: idle and on its first config again when the test is over."""
    site, config = shared_site
    async with aiohttp.ClientSession() as http:
        edge = Edge(site, http)
        yield edge
        await edge.apply(config)
        await edge.until_idle()


@pytest.fixture
async def client(shared_site: tuple[Site, Config]) -> AsyncIterator[AsyncOpenAI]:
    """The official client, with no retries of its own to hide anything."""
    site, _ = shared_site
    async with AsyncOpenAI(
        base_url=site.openai_url, api_key=CALLER_TOKEN, max_retries=0, timeout=30
    ) as client:
        yield client


@pytest.fixture
async def own_site(tmp_path: Path, small_upstream_url: str) -> AsyncIterator[Edge]:
    """A site of the test's own, not started yet, whose processes may also be killed."""
    killed = {"edge": {0, 7, -9}, "node-a": {0, 7, -9}, "node-b": {0, 7, -9}}
    with running_site(tmp_path / "site", expected=killed) as site:
        write(site, site_config(site, small_upstream_url))
        async with aiohttp.ClientSession() as http:
            yield Edge(site, http)


@pytest.fixture(scope="session")
def ingress(
    tmp_path_factory: pytest.TempPathFactory, real_model: dict[str, Any] | None
) -> Iterator[Rig]:
    """The site whose upstreams follow scripts, shared by all tests of the ingress."""
    with ingress_rig(tmp_path_factory.mktemp("ingress"), SCRIPTS, real_model) as rig:
        yield rig
