"""What a caller's model name means (CFG-28): a model group, a direct target, or nothing.

The only place where a name from outside is looked up. It never looks at provider ids, adapter
keys or targets (CFG-27), and knows nothing of slots: that a model has candidates does not mean
that one is free.
"""

from __future__ import annotations

from iop_edge.pool.catalog import Catalog, DirectTarget, ModelSpec
from iop_shared.errors import Code, Fault
from iop_shared.ids import ModelId


def resolve(catalog: Catalog, model: ModelId) -> ModelSpec | DirectTarget:
    """`models[]` first, then a route, then the fallback.

    A `ModelSpec` is admitted by the pool; a `DirectTarget` is dispatched as it stands and takes
    no slot. Raises Fault(model_not_found).
    """
    group = catalog.models.get(model)
    if group is not None:
        return group
    direct = catalog.routes.get(model, catalog.fallback)
    if direct is None:
        raise Fault(
            Code.MODEL_NOT_FOUND,
            f"there is no model {model!r} here; GET /v1/models lists those there are",
            param="model",
        )
    return direct
