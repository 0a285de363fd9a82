"""The node's own bound on concurrent work per provider.

The edge owns admission; this is the second lock on the door, so that a lease which was granted
twice costs a new admission and never an overload. It must therefore never refuse what the edge
granted rightly. Two things look like a breach and are none:

 1. A cancelled attempt still unwinds while the slot it held was granted again; or a payload with
    more capacity is still being applied. So a full provider is waited for, up to `grace_s`.
 2. An attempt that was dispatched before a shrinking payload arrives after it (control frames
    overtake data frames). So an attempt of an older generation than the registry's is not judged.

Counters live outside the registries and survive every swap.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from iop_shared.errors import Code, Fault
from iop_shared.ids import ProviderId


class ProviderSlots:
    """Slots in use, by provider. `capacity_of` returns the capacity of the registry that serves,
    None for a provider that is not judged; `generation` likewise."""

    def __init__(
        self,
        capacity_of: Callable[[ProviderId], int | None],
        generation: Callable[[], int],
        grace_s: float = 1.0,
    ) -> None:
        self._capacity_of = capacity_of
        self._generation = generation
        self._grace_s = grace_s
        self._in_use: Counter[ProviderId] = Counter()
        self._waiting: dict[ProviderId, deque[asyncio.Future[None]]] = {}

    def in_use(self, provider_id: ProviderId) -> int:
        return self._in_use[provider_id]

    async def take(self, provider_id: ProviderId, generation: int) -> None:
        """Take one slot of the provider, oldest first. Every slot taken is given back once.

        Raises Fault(no_provider) when none came free within the grace; nothing was sent then.
        """
        if not self.take_at_once(provider_id, generation):
            await self._wait(provider_id, generation)
            self._in_use[provider_id] += 1

    def take_at_once(self, provider_id: ProviderId, generation: int) -> bool:
        """The same where nothing has to be waited for; False, and nothing taken, where it has."""
        if self._is_judged(generation) and (
            self._waiting.get(provider_id) or self._is_full(provider_id)
        ):
            return False
        self._in_use[provider_id] += 1
        return True

    def give_back(self, provider_id: ProviderId) -> None:
        self._in_use[provider_id] -= 1
        if not self._in_use[provider_id]:
            del self._in_use[provider_id]
        self._wake(provider_id)

    def recheck(self) -> None:
        """Let everyone who waits look again: the capacities may have changed."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def _is_judged(self, generation: int) -> bool:
        return generation >= self._generation()

    def _is_full(self, provider_id: ProviderId) -> bool:
        capacity = self._capacity_of(provider_id)
        return capacity is not None and self._in_use[provider_id] >= capacity

    async def _wait(self, provider_id: ProviderId, generation: int) -> None:
        waiting = self._waiting.setdefault(provider_id, deque())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(place)
        try:
            async with asyncio.timeout(self._grace_s):
                while self._is_judged(generation) and (
                    self._is_full(provider_id) or waiting[0] is not place
                ):
                    await place
                    renewed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    waiting[waiting.index(place)] = renewed
                    place = renewed
        except TimeoutError:
            raise Fault(
                Code.NO_PROVIDER,
                f"provider {provider_id} has no free slot on its node "
                f"({self._in_use[provider_id]} in use)",
            ) from None
        finally:
            waiting.remove(place)
            if not waiting:
                self._waiting.pop(provider_id, None)
            else:
                self._wake(provider_id)

    def _wake(self, provider_id: ProviderId) -> None:
        for place in self._waiting.get(provider_id, ()):
            if not place.done():
                place.set_result(None)
                return
