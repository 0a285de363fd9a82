"""From a payload to a registry that serves, or a refusal that changed nothing (NODE-3, REF-9).

It decides in which order payloads are judged and which of them are stale. It never knows a frame,
and it stops nothing: that is the router's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from iop.runtime_pb2 import NodeConfigAnswer, NodeConfigPayload
from iop_node.adapters.kinds import KINDS, Build
from iop_node.adapters.refused import PayloadRefused
from iop_node.runtime.registry import AdapterRegistry
from iop_node.runtime.resolve import NodeSources
from iop_node.runtime.router import Router
from iop_shared import logs

_log = logs.get("node.applier")


class Applier:
    """Applies payloads one after the other, in the order in which they were given."""

    def __init__(
        self, router: Router, sources: NodeSources, kinds: Mapping[str, Build] = KINDS
    ) -> None:
        self._router = router
        self._sources = sources
        self._kinds = kinds
        self._turn = asyncio.Lock()
        self._welcomed_boot_id = ""
        self._effective_boot_id = ""
        self._effective_generation = 0

    @property
    def boot_id(self) -> str:
        """Of the edge process whose generation is effective; empty before the first."""
        return self._effective_boot_id

    @property
    def effective_generation(self) -> int:
        """What the node runs; 0 before the first."""
        return self._effective_generation

    async def apply(
        self, payload: NodeConfigPayload, *, boot_id: str, is_welcome: bool
    ) -> NodeConfigAnswer:
        """Build, start, swap, answer. Never raises for what a payload holds.

        A welcome's payload is always judged afresh. A later one is refused as `stale_generation`
        when its generation lies below the effective one of the same edge process, and as
        `stale_session` when it is of an edge process that has been succeeded. After a refusal the
        registry that ran goes on serving. Cancellation abandons what was not installed yet.
        """
        if is_welcome:
            self._welcomed_boot_id = boot_id
        async with self._turn:
            try:
                self._refuse_stale(payload, boot_id, is_welcome)
                await self._install(payload)
            except PayloadRefused as refusal:
                _log.warning(
                    "payload_refused",
                    generation=payload.generation,
                    code=refusal.code,
                    reason=refusal.reason,
                )
                return self._answer(payload, boot_id, refusal)
            except Exception as error:
                # A bug in one adapter's construction must not end the session.
                _log.exception("payload_apply_failed", generation=payload.generation)
                return self._answer(
                    payload,
                    boot_id,
                    PayloadRefused(
                        "internal", f"the node could not apply it ({type(error).__name__})"
                    ),
                )
            self._effective_boot_id = boot_id
            self._effective_generation = payload.generation
            _log.info("payload_applied", generation=payload.generation)
            return self._answer(payload, boot_id, None)

    def _refuse_stale(self, payload: NodeConfigPayload, boot_id: str, is_welcome: bool) -> None:
        if boot_id != self._welcomed_boot_id:
            raise PayloadRefused(
                "stale_session", "the edge process that sent this has been succeeded by another"
            )
        if (
            not is_welcome
            and boot_id == self._effective_boot_id
            and payload.generation < self._effective_generation
        ):
            raise PayloadRefused(
                "stale_generation",
                f"generation {payload.generation} is older than {self._effective_generation}, "
                "which the node runs",
            )

    async def _install(self, payload: NodeConfigPayload) -> None:
        # Files and certificates are read in a thread: a slow disk stalls no stream.
        built = await asyncio.to_thread(AdapterRegistry.build, payload, self._sources, self._kinds)
        # From here to the hold there is no await, so nothing that is carried over can stop.
        registry = built.sharing(self._router.alive)
        self._router.prepare(registry)
        try:
            await registry.start()
        except BaseException:
            self._router.abandon(registry)
            raise
        self._router.swap(registry)

    def _answer(
        self, payload: NodeConfigPayload, boot_id: str, refusal: PayloadRefused | None
    ) -> NodeConfigAnswer:
        is_same_boot = boot_id == self._effective_boot_id
        return NodeConfigAnswer(
            generation=payload.generation,
            is_acknowledged=refusal is None,
            # Generations compare within one edge process: one of another is none of its own.
            effective_generation=self._effective_generation if is_same_boot else 0,
            code="" if refusal is None else refusal.code,
            reason="" if refusal is None else refusal.reason,
        )
