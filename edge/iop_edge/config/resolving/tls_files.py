"""Whether the TLS files of listeners are there, while the config is being checked.

A warning each: the files belong to the machine that serves, and a check may run elsewhere. Nothing
of their content is kept.
"""

from __future__ import annotations

from iop_edge.config.document import Document
from iop_edge.config.report import Report
from iop_edge.config.resolving.secrets import warn_if_readable_by_others
from iop_edge.config.sources import SecretUnreadable, Sources

_SECTIONS = ("server", "bootstrap", "openai")
_FIELDS = ("cert_file", "key_file", "client_ca_file")


def check_tls_files(document: Document, sources: Sources, report: Report) -> None:
    """Report files that cannot be read, and keys that every user of the machine can read."""
    for name in _SECTIONS:
        section = getattr(document, name)
        if section is None or section.tls is None:
            continue
        for field in _FIELDS:
            path = getattr(section.tls, field)
            if not path:
                continue
            steps = (name, "tls", field)
            try:
                file = sources.read_secret(path)
            except SecretUnreadable as unreadable:
                report.warning(
                    "tls_file_unreadable",
                    f"{path} {unreadable.reason} here; the listener cannot start without it",
                    steps,
                )
                continue
            if field == "key_file":
                warn_if_readable_by_others(path, file, steps, report)
