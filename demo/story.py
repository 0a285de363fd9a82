"""The demo's acts, in order. Each one shows something and checks that it was so.

Whatever is claimed on the screen has been compared with what was promised: an exit status, a
generation, a digest. Anything else raises `NotAsPromised`, and the demo fails.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Generator
from typing import Any

import yaml
from openai import OpenAI

from demo import model_server
from demo.processes import Group, until
from demo.site import Ran, Site
from demo.voice import Bar, Voice

QUESTION = "What is a load balancer? Answer in two sentences."
LONG_REQUEST = "Tell me a long story about a lighthouse keeper."
LONG_STREAM_S = 5
"""How long the long stream is to last: a refresh must fit into it with room to spare."""

_MODELS = """\
models:
  - id: smol
    display_name: SmolLM2 135M
    providers: {{ left-smol: {served}, right-smol: {served} }}
    context_window_tokens: 2048
    default_max_tokens: 256
nodes:
"""
_NODE = """\
  - id: {node}
    alias: rack-{node}
    token: {{ sha256: "{sha256}" }}
    adapters:
      - {{ key: llama, type: openai_compat, base_url: "{base_url}" }}
    providers:
      - id: {node}-smol
        type: llama_cpp
        category: local_inference
        adapter: llama
        models: [{served}]
        capacity: 1
        priority: 0
"""


class NotAsPromised(Exception):
    """Something on the stage was not what the contract says."""


class Story:
    def __init__(self, group: Group, voice: Voice, *, is_small: bool = False) -> None:
        self.group = group
        self._uses_model = model_server.can_run() and not is_small
        self.site = Site(group)
        self.voice = voice
        self.shown: list[tuple[str, str]] = []
        self._model = ""
        self._tokens_per_s = 50.0
        self._long_request: dict[str, Any] = {}
        self._listeners: list[Listener] = []

    def play(self) -> None:
        """Everything up to the stop. Raises NotAsPromised or StartFailed."""
        self._raise_the_curtain()
        self._ask()
        self._refresh_under_a_stream()
        self._tell_candidates_apart()

    # -- acts

    def _raise_the_curtain(self) -> None:
        site, voice = self.site, self.voice
        voice.heading("A model server, one edge, two nodes")
        if self._uses_model:
            with voice.step("a real model server: llama.cpp with SmolLM2-135M"):
                upstream = self.group.start_announced("model", "demo.model_server")
        else:
            if not model_server.can_run():
                voice.say("[yellow]The model package is not installed; `make model` tells why.")
            voice.say("[yellow]A small built-in upstream stands in: real streams, invented words.")
            with voice.step("the small built-in upstream"):
                upstream = self.group.start_announced(
                    "model", "demo.small_upstream", "--tokens", "40", "--pace-ms", "15"
                )
        self._model = upstream["model"]
        self._write(self._first_config(upstream["listening"]))
        with voice.step(f"the edge, on {site.config}"):
            site.start_edge()
        with voice.step("two nodes, given IOP_EDGE and IOP_NODE_TOKEN and nothing else"):
            for node_id in ("left", "right"):
                site.start_node(node_id)
            site.wait_connected("left", "right")
        self._run("status", expected=0)
        self._claim("nodes join by themselves", "two variables, no file on the node")

    def _ask(self) -> None:
        voice = self.voice
        voice.heading("A real question, through the official openai client")
        voice.say(f"[bold]> {QUESTION}[/bold]")
        began = time.monotonic()
        first_s, count = 0.0, 0
        for piece in self._pieces(self._chat(QUESTION, max_tokens=80)):
            first_s = first_s or time.monotonic() - began
            count += 1
            voice.token(piece)
        took_s = time.monotonic() - began
        voice.say("")
        if count < 2:
            raise NotAsPromised(f"the answer came in {count} pieces")
        self._tokens_per_s = (count - 1) / max(took_s - first_s, 0.001)
        voice.note(
            f"{count} tokens, the first after {first_s * 1000:.0f} ms, "
            f"{self._tokens_per_s:.0f} a second"
        )
        self._claim("one endpoint, the official client", f"{count} tokens as they came")

    def _refresh_under_a_stream(self) -> None:
        site, voice = self.site, self.voice
        voice.heading("The configuration changes while a long stream runs")
        length = max(120, min(1500, int(self._tokens_per_s * LONG_STREAM_S)))
        self._long_request = self._chat(LONG_REQUEST, max_tokens=length)
        before = site.status()["generation"]
        with voice.progress("the stream", length) as bar:
            stream = self._listen(bar)
            until(lambda: stream.count > 5 or stream.has_ended, timeout_s=30)
            self._edit(("capacity: 1", "capacity: 3"), ("priority: 0", "priority: 5"))
            self._run("config", "refresh", "--dry-run", expected=3)
            self._so_far(stream)
            self._run("config", "refresh", expected=0)
            at_apply = stream.count
            self._so_far(stream)
            if stream.has_ended:
                raise NotAsPromised("the stream ended before the refresh was applied")
            provider = site.provider_status("left-smol")
            stream.join()
        if stream.failure is not None or stream.count != length:
            raise NotAsPromised(f"{stream.count} of {length} tokens came ({stream.failure})")
        after = site.status()["generation"]
        if (after, provider["capacity"], provider["priority"]) != (before + 1, 3, 5):
            raise NotAsPromised(f"generation {after}, {provider}")
        voice.say(
            f"The refresh was applied at token {at_apply}; all {length} tokens came. "
            f"Generation {before} → {after}."
        )
        with voice.progress("the same again, undisturbed", length) as bar:
            reference = self._listen(bar)
            reference.join()
        if reference.digest != stream.digest:
            raise NotAsPromised("the same request gave another text when nothing was refreshed")
        voice.say(f"The same words both times: sha256 {stream.digest[:16]}…")
        self._claim("capacity and priority changed live", f"generation {before} → {after}")
        self._claim(
            "a running stream is not touched", f"{length} of {length} tokens, digests equal"
        )

    def _tell_candidates_apart(self) -> None:
        site, voice = self.site, self.voice
        voice.heading("What cannot be applied is told apart, and changes nothing")
        good = site.config.read_text()
        before = site.status()["generation"]

        voice.say("A change that needs a restart, together with one that does not:")
        self._edit(("capacity: 3", "capacity: 4"), ("alias: rack-left", "alias: rack-one"))
        self._run("config", "refresh", expected=4)
        voice.say("\nA candidate with mistakes:")
        self._write(good)
        self._edit(("capacity: 3", "capcity: 3"), ("priority: 5", "priority: high"))
        self._run("config", "refresh", expected=1)
        self._write(good)

        provider = site.provider_status("left-smol")
        if site.status()["generation"] != before or provider["capacity"] != 3:
            raise NotAsPromised(f"generation {site.status()['generation']}, {provider}")
        voice.say(f"Still generation {before}, still capacity 3. The good file again:")
        self._run("config", "refresh", expected=0)
        self._claim("restart needed: nothing is half applied", "exit status 4, both lists shown")
        self._claim("a bad file is refused with its places", "exit status 1, file:line:column")

    # -- the end

    def hang_up(self) -> None:
        """Leave every stream that still runs, so that nothing has to be waited for."""
        for listener in self._listeners:
            listener.is_leaving = True

    def stop(self) -> None:
        """Stop everything, the nodes first. Raises NotAsPromised for an unclean end."""
        self.voice.heading("Everything stops")
        statuses = {}
        for process in reversed(self.group.processes):
            with self.voice.step(f"{process.name} has ended"):
                statuses[process.name] = process.stop()
        if any(statuses.values()):
            raise NotAsPromised(f"exit statuses {statuses}")
        self._claim("everything ends cleanly", "SIGTERM, drain, exit status 0")

    # -- props

    def _claim(self, claim: str, evidence: str) -> None:
        self.shown.append((claim, evidence))

    def _run(self, *arguments: str, expected: int) -> Ran:
        ran = self.site.iop_edge(*arguments)
        self.voice.command(ran)
        if ran.exit_status != expected:
            raise NotAsPromised(f"`{ran.line}` ended with {ran.exit_status}, not {expected}")
        return ran

    def _chat(self, prompt: str, *, max_tokens: int) -> dict[str, Any]:
        # Repeatable to the token: greedy, and nothing remembered from the request before.
        return {
            "model": "smol",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "seed": 1,
            "extra_body": {"cache_prompt": False},
        }

    def _pieces(self, request: dict[str, Any]) -> Generator[str, None, None]:
        client = OpenAI(base_url=self.site.openai_url, api_key="none-needed", max_retries=0)
        with client:
            for chunk in client.chat.completions.create(**request, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    def _listen(self, bar: Bar) -> Listener:
        request = self._long_request | {"extra_body": {"cache_prompt": False, "ignore_eos": True}}
        listener = Listener(self._pieces(request), bar)
        listener.start()
        self._listeners.append(listener)
        return listener

    def _so_far(self, stream: Listener) -> None:
        seen = stream.count
        until(lambda: stream.count > seen or stream.has_ended, timeout_s=30)
        self.voice.say(f"  [magenta]the stream goes on: {stream.count} tokens so far[/magenta]")

    def _write(self, text: str) -> None:
        # As an editor does it: a new file under the old name, never a half-written one.
        new = self.site.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.site.config)

    def _edit(self, *changes: tuple[str, str]) -> None:
        """Replace whole lines, each where it first stands, and show it."""
        lines = self.site.config.read_text().splitlines()
        removed, added = [], []
        for old, new in changes:
            index = next(i for i, line in enumerate(lines) if line.strip() == old)
            removed.append(lines[index])
            lines[index] = lines[index].replace(old, new)
            added.append(lines[index])
        self._write("\n".join(lines) + "\n")
        self.voice.say(f"[bold]edit[/bold] {self.site.config.name}")
        self.voice.edit(removed, added)

    def _first_config(self, base_url: str) -> str:
        sections = {"edge": {"id": "demo"}, **self.site.listeners()}
        sections["server"]["drain_deadline_ms"] = 5000
        nodes = "".join(
            _NODE.format(
                node=node_id,
                sha256=self.site.token_sha256(node_id),
                base_url=base_url,
                served=self._model,
            )
            for node_id in ("left", "right")
        )
        head = yaml.safe_dump(sections, sort_keys=False, default_flow_style=None)
        return head + _MODELS.format(served=self._model) + nodes


class Listener(threading.Thread):
    """Reads one stream to its end, aside. Counts, and keeps a digest of the words."""

    def __init__(self, pieces: Generator[str, None, None], bar: Bar) -> None:
        super().__init__(daemon=True)
        self._pieces = pieces
        self._bar = bar
        self._words = hashlib.sha256()
        self.count = 0
        self.is_leaving = False
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for piece in self._pieces:
                self._words.update(piece.encode())
                self.count += 1
                self._bar.moved_to(self.count)
                if self.is_leaving:
                    self._pieces.close()
                    return
        except Exception as failure:  # told by whoever waits for the end
            self.failure = failure

    @property
    def has_ended(self) -> bool:
        return not self.is_alive()

    @property
    def digest(self) -> str:
        return self._words.hexdigest()
