"""The config as an operator writes it: structs that decode, bound and describe every key.

A field that may be left out is `None` when it is, so that an omitted value and an explicit zero
differ; what an omitted value comes to stands in the effective struct of the same name and nowhere
else. The JSON Schema and the reference in the docs are printed from here (CFG-24).
"""

from iop_edge.config.document.models import ModelDocument
from iop_edge.config.document.nodes import (
    AdapterDocument,
    NodeDocument,
    ProbeDocument,
    ProviderDocument,
    RuntimeDocument,
)
from iop_edge.config.document.openai import (
    FilterDocument,
    GateDocument,
    OpenAIDocument,
    PrincipalTokenDocument,
    RouteDocument,
    SelectorDocument,
)
from iop_edge.config.document.profiles import ProfileAuthDocument, ProfileDocument
from iop_edge.config.document.root import Document
from iop_edge.config.document.secrets import SecretDocument
from iop_edge.config.document.sections import ProviderPoolDocument, TlsDocument

__all__ = [
    "AdapterDocument",
    "Document",
    "FilterDocument",
    "GateDocument",
    "ModelDocument",
    "NodeDocument",
    "OpenAIDocument",
    "PrincipalTokenDocument",
    "ProbeDocument",
    "ProfileAuthDocument",
    "ProfileDocument",
    "ProviderDocument",
    "ProviderPoolDocument",
    "RouteDocument",
    "RuntimeDocument",
    "SecretDocument",
    "SelectorDocument",
    "TlsDocument",
]
