"""A composed site as its operator and its callers have it: commands, one port, and the logs.

Everything goes through `docker compose`, the published port, and the commands inside the
containers. Waiting is for what those say, under a deadline.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from demo.processes import ROOT
from demo.small_upstream import words_for

PROJECT = "iop-test"
PROMPT_CANARY = "quokka-prompt-canary"
COMPLETION_CANARIES = ("juniper", "quarry", "zephyr")  # words of the small upstream's answers
NODES = ("node-a", "node-b")
WORKERS = ("edge", *NODES)
SERVICES = (*WORKERS, "tokens", "model", "upstream")
GRACE_S = 40
SILENCE_S = 15
"""How long a node that says nothing may go unnoticed (NODE-6)."""
SLACK_S = 10
"""What asking and a busy machine may add to any deadline here."""

_TROUBLE = re.compile(r"Traceback|\"exc_type\"|was never (retrieved|awaited)|Task was destroyed")

Config = dict[str, Any]


def container(service: str) -> str:
    """The name that Compose gives to the one container of a service."""
    return f"{PROJECT}-{service}-1"


def prompt(tag: str, more: str = "") -> str:
    """A prompt that follows the plan under `tag` and can be recognized wherever it leaks."""
    return f"[{tag}] {PROMPT_CANARY} {more}"


@dataclass(frozen=True)
class Answer:
    """What a caller got: `end` is `done`, `error:<code>`, `status:<code>` or `cut`."""

    text: str
    end: str


class Heard:
    """What a caller has been told so far."""

    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Event()

    def add(self, piece: str) -> None:
        self.text += piece
        self._more.set()

    async def until(self, text: str, *, within_s: float = 60) -> None:
        """Until it begins so: what stops then has not been cut off before."""
        async with asyncio.timeout(within_s + SLACK_S):
            while not self.text.startswith(text):
                self._more.clear()
                await self._more.wait()


class Folder:
    """The edge's config folder, laid out as a deployment mounts one: the file is a symlink through
    `..data`, and a new version is one swap of that link."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._version = 0
        path.chmod(0o755)
        (path / "edge.yaml").symlink_to("..data/edge.yaml")

    def put(self, text: str) -> None:
        self._version += 1
        version = self.path / f"..version-{self._version}"
        version.mkdir(mode=0o755)
        (version / "edge.yaml").write_text(text)
        link = self.path / "..data.new"
        link.symlink_to(version.name)
        link.replace(self.path / "..data")


def config_of_the_site(**capacities: int) -> Config:
    """The shipped config, with the model `pair` added on both nodes, over the test's upstream."""
    shipped = (ROOT / "deploy" / "compose" / "edge" / "edge.yaml").read_text()
    config: Config = yaml.safe_load(shipped)
    config["models"].append({"id": "pair", "providers": {"a-pair": "small-a", "b-pair": "small-b"}})
    for node, name in zip(config["nodes"], "ab", strict=True):
        node["adapters"].append(
            {"key": "held", "type": "openai_compat", "base_url": "http://upstream:9000"}
        )
        node["providers"].append(
            {
                "id": f"{name}-pair",
                "type": "llama_cpp",
                "category": "local_inference",
                "adapter": "held",
                "models": [f"small-{name}"],
                "capacity": capacities.get(name, 8),
            }
        )
    return config


class Site:
    """One project of Compose. `env` is what the compose files are read with."""

    def __init__(self, folder: Folder, openai_port: int) -> None:
        self.folder = folder
        self.openai_url = f"http://127.0.0.1:{openai_port}"
        self.env = os.environ | {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": "docker-compose.yml:tests/compose/site.yaml",
            "IOP_OPENAI_PORT": str(openai_port),
            "IOP_TEST_CONFIG": str(folder.path),
            "COMPOSE_ANSI": "never",
            "COMPOSE_PROGRESS": "quiet",
        }
        self.caller_token = ""
        self.secrets: dict[str, str] = {}

    # -- commands ------------------------------------------------------------------------------

    def docker(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run `docker …` and return what it printed. Fails with all of it on another status."""
        ran = self.ran(*arguments, stdin=stdin)
        if check and ran.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {ran.returncode}\n{_end(ran)}")
        return ran.stdout

    def ran(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            cwd=ROOT,
            env=self.env,
        )

    def compose(self, *arguments: str) -> str:
        return self.docker("compose", *arguments)

    async def aside(self, *arguments: str) -> str:
        """As `docker`, while the streams of the test go on."""
        return await asyncio.to_thread(self.docker, *arguments)

    def inspect(self, service: str, what: str) -> Any:
        shown = self.docker("inspect", "--format", f"{{{{json {what}}}}}", container(service))
        return json.loads(shown)

    def logs(self, *services: str) -> list[str]:
        """Every line that these services, or all, have written since their containers were made."""
        said = [self.ran("logs", container(service)) for service in services or SERVICES]
        return [line for ran in said for line in (ran.stdout + ran.stderr).splitlines()]

    def learn_secrets(self) -> None:
        """What nobody may find in a log. The caller's token is asked for as its holder does."""
        self.caller_token = self.compose("run", "--rm", "-T", "tokens", "caller").strip()
        self.secrets = {"caller": self.caller_token}
        for node in NODES:
            token = self.docker("exec", container(node), "cat", "/run/secrets/iop/token")
            self.secrets[node] = token.strip()

    # -- the operator --------------------------------------------------------------------------

    async def iop_edge(self, *arguments: str) -> tuple[int, Any]:
        """A command in the edge's container: its exit status, and the JSON that it printed."""
        ran = await asyncio.to_thread(
            self.ran, "exec", container("edge"), "iop-edge", *arguments, "--json"
        )
        return ran.returncode, json.loads(ran.stdout) if ran.stdout.strip() else None

    async def status(self) -> Any:
        """The edge's status; None where it does not answer."""
        exit_status, status = await self.iop_edge("status")
        return status if exit_status == 0 else None

    async def apply(self, config: Config) -> Any:
        """Put a config in place and refresh; fails unless every node runs it."""
        self.folder.put(yaml.safe_dump(config, sort_keys=False))
        exit_status, result = await self.iop_edge("config", "refresh")
        assert exit_status == 0, result
        return result

    async def until(self, claim: Callable[[Any], object], *, within_s: float = 60) -> Any:
        """The first status for which the claim holds. AssertionError with the last one if none."""
        status: Any = None
        try:
            async with asyncio.timeout(within_s + SLACK_S):
                while not ((status := await self.status()) and claim(status)):
                    await asyncio.sleep(0.1)  # offered for what status shows
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {status}") from None
        return status

    async def until_whole(self) -> Any:
        """Every node is connected, nothing runs and nothing waits."""
        return await self.until(lambda status: is_idle(status) and connected(status) == set(NODES))

    # -- a caller ------------------------------------------------------------------------------

    async def ask(
        self, content: str, *, model: str = "pair", heard: Heard | None = None, **more: Any
    ) -> Answer:
        """Stream one answer to its end, whatever that is."""
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        headers = {"Authorization": f"Bearer {self.caller_token}"}
        heard = heard or Heard()
        try:
            async with (
                aiohttp.ClientSession(self.openai_url, headers=headers) as http,
                http.post("/v1/chat/completions", json={**body, "stream": True}) as answer,
            ):
                if answer.status != 200:
                    return Answer("", f"status:{(await answer.json())['error']['code']}")
                async for line in answer.content:
                    data = line.decode().removeprefix("data: ").strip()
                    if data == "[DONE]":
                        return Answer(heard.text, "done")
                    if not data:
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        return Answer(heard.text, f"error:{event['error']['code']}")
                    heard.add("".join(c["delta"].get("content", "") for c in event["choices"]))
        except aiohttp.ClientError:
            pass
        return Answer(heard.text, "cut")

    # -- after every test ----------------------------------------------------------------------

    def leaks(self) -> list[str]:
        """Lines of any container's log in which a secret, a prompt or an answer stands."""
        canaries = {
            **self.secrets,
            "prompt": PROMPT_CANARY,
            **{f"completion {word}": word for word in COMPLETION_CANARIES},
        }
        return [
            f"{name}: {line[:60]}…"
            for line in self.logs()
            for name, secret in canaries.items()
            if secret in line
        ]

    def trouble(self) -> list[str]:
        return [line[:2000] for line in self.logs() if _TROUBLE.search(line)]

    def events(self, service: str) -> list[dict[str, Any]]:
        """What an edge or a node has logged, in order."""
        return [json.loads(line) for line in self.logs(service) if line.startswith("{")]


def is_idle(status: Mapping[str, Any]) -> bool:
    is_free = all(provider["in_flight"] == 0 for provider in status["providers"])
    return is_free and int(status["queue"]["pending"]) == 0


def connected(status: Mapping[str, Any]) -> set[str]:
    return {node["node_id"] for node in status["nodes"] if node["connected"]}


def in_flight(status: Mapping[str, Any]) -> int:
    return sum(provider["in_flight"] for provider in status["providers"])


def whole(content: str, tokens: int) -> Answer:
    """The answer of the test's upstream to this prompt, complete."""
    return Answer("".join(words_for(content, tokens)), "done")


def _end(ran: subprocess.CompletedProcess[str]) -> str:
    return "\n".join([*ran.stdout.splitlines()[-20:], *ran.stderr.splitlines()[-20:]])
