"""The ingress on a free port, over a run service that plays a script."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from iop.runtime_pb2 import RunEvent
from iop_edge.config.effective import (
    Adapter,
    EffectiveConfig,
    IngressLimits,
    ModelGroup,
    Node,
    OpenAI,
    Provider,
    SecretRef,
)
from iop_edge.pool.catalog import Catalog
from iop_edge.runtime.work import AnswerReader, HeaderPairs, RunSpec
from iop_edge.serve.http.listener import HttpListener
from iop_edge.serve.openai.ingress import Ingress
from iop_shared.errors import Fault
from iop_shared.ids import Target
from iop_shared.profiles import ProtocolProfile

Step = bytes | Exception | asyncio.Event


class ScriptedAnswer:
    def __init__(
        self, spec: RunSpec, status: int, reader: AnswerReader, steps: Iterable[Step]
    ) -> None:
        self._reader = reader
        self._steps = steps
        self.status = status
        self.is_stream = spec.work.is_stream and status < 400

    @property
    def headers(self) -> HeaderPairs:
        return self._reader.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif released := self._reader.feed(step):
                yield released
        if rest := self._reader.end():
            yield rest


class ScriptedRun:
    """The answer of a normalized run."""

    status = 200

    def __init__(self, spec: RunSpec, events: Sequence[RunEvent]) -> None:
        self._reader = spec.work.run_reader()
        self._events = events
        self.is_stream = spec.work.is_stream

    @property
    def headers(self) -> HeaderPairs:
        return self._reader.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            if released := self._reader.feed(event):
                yield released
        yield self._reader.end()


class ScriptedRuns:
    """Answers every run by one script; remembers what was asked, and how each run was left."""

    def __init__(self) -> None:
        self.specs: list[RunSpec] = []
        self.left: list[str] = []
        self.has_entered = asyncio.Event()
        self.has_left = asyncio.Event()
        # Whichever protocol is spoken, it is an answer.
        self.answers(200, b'{"choices":[],"output":[],"content":[]}')

    def answers(
        self, status: int, *steps: Step, headers: HeaderPairs = (), refusal: Step | None = None
    ) -> None:
        self._status, self._steps, self._headers, self._refusal = status, steps, headers, refusal
        self._events: Sequence[RunEvent] | None = None

    def answers_run(self, *events: RunEvent) -> None:
        """The chosen provider does not speak the caller's protocol."""
        self.answers(200)
        self._events = events

    def refuses(self, refusal: Step) -> None:
        self.answers(200, refusal=refusal)

    @asynccontextmanager
    async def open(self, spec: RunSpec) -> AsyncIterator[ScriptedAnswer]:
        self.specs.append(spec)
        self.has_entered.set()
        end = "completed"
        try:
            if isinstance(self._refusal, asyncio.Event):
                await self._refusal.wait()
            if isinstance(self._refusal, Fault):
                raise self._refusal
            if self._events is not None:
                self.run = spec.work.run_request()
                yield ScriptedRun(spec, self._events)
                return
            reader = spec.work.reader(self._status, self._headers, Target("served"))
            yield ScriptedAnswer(spec, self._status, reader, self._steps)
        except Fault as fault:
            end = fault.code.value
            raise
        except asyncio.CancelledError:
            end = "cancelled"
            raise
        finally:
            self.left.append(end)
            self.has_left.set()

    @property
    def spec(self) -> RunSpec:
        return self.specs[-1]

    def sent(self, target: str = "served") -> dict[str, Any]:
        """What the upstream of the last run would have got."""
        body: dict[str, Any] = msgspec.json.decode(self.spec.work.upstream_body(Target(target)))
        return body


def config_of(openai: OpenAI, *models: ModelGroup) -> EffectiveConfig:
    profile = ProtocolProfile(
        id="p",
        driver="openai_chat",
        operation_urls={"chat_completions": "http://127.0.0.1:9/v1/chat/completions"},
        capabilities=frozenset({"chat", "streaming"}),
        model_mapping={},
        extensions={},
    )
    node = Node(
        id="n1",
        token=SecretRef(env="T"),
        adapters=(
            Adapter(key="a1", type="openai_compat", base_url="http://127.0.0.1:9", profile=profile),
        ),
        providers=(
            Provider(
                id="p1", type="vllm", category="local_inference", adapter="a1",
                models=("served",), capacity=1,
            ),
        ),
    )  # fmt: skip
    return EffectiveConfig(openai=openai, models=models, nodes=(node,))


SMALL = ModelGroup(id="lab/small", display_name="Small", providers={"p1": "served"})


class Edge:
    """The ingress and what stands behind it."""

    def __init__(self) -> None:
        self.runs = ScriptedRuns()
        self.stack = AsyncExitStack()
        self.refused: list[str] = []
        self.url = ""

    async def serve(
        self,
        *models: ModelGroup,
        openai: OpenAI | None = None,
        limits: IngressLimits | None = None,
    ) -> "Edge":
        config = config_of(openai or OpenAI(), *(models or (SMALL,)))
        snapshot = SimpleNamespace(
            config=config,
            catalog=Catalog.from_config(config),
            applied_at=datetime(2026, 8, 2, tzinfo=UTC),
        )
        ingress = Ingress(
            config.openai,
            snapshots=SimpleNamespace(current=snapshot),
            runs=self.runs,
            count_refusal=lambda code: self.refused.append(code.value),
        )
        listener = HttpListener(ingress.router(), "127.0.0.1:0", limits=limits)
        await self.stack.enter_async_context(listener)
        self.listener = listener
        self.url = f"http://{listener.address}"
        return self


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    edge = Edge()
    yield edge
    await edge.stack.aclose()
