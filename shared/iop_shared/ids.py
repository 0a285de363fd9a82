"""The names of things, as types of their own (CFG-27).

Equal strings in two of these namespaces never resolve across: a function that wants a
`ProviderId` does not type-check with a `ModelId`. They are plain strings at run time.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

ModelId = NewType("ModelId", str)
"""The external model key that a caller names; also the model group key of the pool."""

ProviderId = NewType("ProviderId", str)
"""One capacity-owning resource. Unique in the whole config."""

AdapterKey = NewType("AdapterKey", str)
"""A named adapter instance inside one node."""

Target = NewType("Target", str)
"""The name that an upstream itself uses for a model."""

RouteId = NewType("RouteId", str)
"""A legacy `openai.model_routes[]` entry."""

NodeId = NewType("NodeId", str)
RunId = NewType("RunId", str)

Generation = NewType("Generation", int)
"""The number of a runtime snapshot of one edge process; grows by one with each replacement."""


class Resource(NamedTuple):
    """The owner of capacity counters."""

    node_id: NodeId
    provider_id: ProviderId
