"""One composed site for all tests of this folder: built, brought up, and taken down at the end.

The tests run only where they are asked for (`make test-compose`), since they build images and take
minutes, and only where a Docker engine with Compose answers.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from demo.processes import free_ports
from tests.compose.compose_rig import WORKERS, Folder, Site, config_of_the_site, container
from tests.e2e.e2e_harness import Upstream

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(HERE)]
    why = _why_not(config) if here else None
    for item in here:
        item.add_marker(pytest.mark.compose)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def _why_not(config: pytest.Config) -> str | None:
    if "compose" not in (config.option.markexpr or ""):
        return "containers are driven by `make test-compose`"
    if shutil.which("docker") is None:
        return "no Docker here: the command `docker` is not installed"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return f"no Docker engine with Compose answers (`{' '.join(command)}` fails)"
    return None


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = Folder(tmp_path_factory.mktemp("config"))
    folder.put(yaml.safe_dump(config_of_the_site(), sort_keys=False))
    site = Site(folder, free_ports(1)[0])
    site.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
    try:
        site.compose("up", "--build", "--detach")
        site.learn_secrets()
        asyncio.run(site.until_whole())
        yield site
    finally:
        site.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


@pytest.fixture
async def upstream(site: Site) -> AsyncIterator[Upstream]:
    address = site.compose("port", "upstream", "9000").strip()
    async with aiohttp.ClientSession(f"http://{address}") as http:
        yield Upstream(http)


@pytest.fixture(autouse=True)
async def whole_again(site: Site) -> AsyncIterator[None]:
    """After every test: all nodes are there, no slot is taken, no secret stands in any container's
    log, and no trace of a bug. The next one finds the config that the first one found."""
    yield
    site.docker("start", *map(container, WORKERS))
    await site.until_whole()
    await site.apply(config_of_the_site())
    assert {"edge_ready", "registry_installed"} <= {
        event["event"] for service in WORKERS for event in site.events(service)
    }
    assert site.leaks() == []
    assert site.trouble() == []
