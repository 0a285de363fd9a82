"""The caller protocols that the gate owns, and what reads each (GATE-1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from iop_edge.runtime.work import Surface
from iop_edge.serve.dialect.gated import bodies
from iop_edge.serve.dialect.gated.bodies import BodySays
from iop_edge.serve.dialect.gated.listeners import (
    ChatListener,
    Listener,
    MessagesListener,
    ResponsesListener,
)


class GatedProtocol(Struct, frozen=True):
    """What hears one protocol's streams, and its whole answers."""

    listener: Callable[[], Listener]
    body_says: BodySays


GATED_PROTOCOLS: Mapping[Surface, GatedProtocol] = MappingProxyType(
    {
        "chat": GatedProtocol(ChatListener, bodies.chat_says),
        "responses": GatedProtocol(ResponsesListener, bodies.response_says),
        "messages": GatedProtocol(MessagesListener, bodies.message_says),
    }
)
