"""A candidate's sources to an effective config and its secrets, or every reason why not.

The order: text → tree (per file) → expand → refuse what is retired → legacy forms → merge →
document → effective → secrets. Nothing outside `sources` is looked at, and nothing is changed.
"""

from __future__ import annotations

from msgspec import Struct

from iop_edge.config.document import Document
from iop_edge.config.effective import EffectiveConfig
from iop_edge.config.likely import Likely
from iop_edge.config.paths import render
from iop_edge.config.problems import ConfigInvalid, Problem
from iop_edge.config.reading.decode import Decoder
from iop_edge.config.reading.expand import ExpansionFailed, expand
from iop_edge.config.reading.legacy import normalize_legacy
from iop_edge.config.reading.merge import merge, without_nulls
from iop_edge.config.reading.retired import refuse_retired
from iop_edge.config.report import MAX_COLLECTED, Report
from iop_edge.config.resolving.context import Context
from iop_edge.config.resolving.normalize import normalize
from iop_edge.config.resolving.queue import QueueSource
from iop_edge.config.resolving.secrets import closed_vault, open_vault
from iop_edge.config.resolving.telemetry import check_telemetry
from iop_edge.config.resolving.tls_files import check_tls_files
from iop_edge.config.sources import SecretFile, SecretUnreadable, SourceFile, Sources
from iop_edge.config.vault import Vault, secret_paths
from iop_edge.config.yaml12.aliases import References
from iop_edge.config.yaml12.places import Place, Places, mark_of
from iop_edge.config.yaml12.text import Lines, TextRefused, decode
from iop_edge.config.yaml12.tree import Tree, build

__all__ = [
    "ConfigInvalid",
    "Loaded",
    "SecretFile",
    "SecretUnreadable",
    "SourceFile",
    "Sources",
    "Vault",
    "load",
    "secret_paths",
]


class Loaded(Struct, frozen=True, kw_only=True):
    """A candidate that is proved. `digest` is `sha256:` and hex over the candidate's bytes.

    `queue_source` says where the queue policy comes from: the root key, what legacy provider keys
    agree on, or the defaults (CFG-8).
    """

    config: EffectiveConfig
    digest: str
    vault: Vault
    warnings: tuple[Problem, ...]
    queue_source: QueueSource = "default"


def load(sources: Sources, *, skip_secrets: bool = False) -> Loaded:
    """Read, merge, normalize and validate a candidate.

    With `skip_secrets` no secret is resolved, and the vault holds none. Raises ConfigInvalid with
    every problem of the candidate; any bytes at all end in one or the other.
    """
    report = Report(Places())
    trees = [_read(file, sources, report) for file in sources.files]
    roots = [tree.root for tree in trees if tree.root is not None]
    if not roots or len(roots) < len(trees):
        # What a file that cannot be read would have said is not known: nothing is made of the rest.
        raise report.invalid()
    root = roots[0]
    for over in roots[1:]:
        root = merge(root, over, report.places)
    if any(tree.has_nulls for tree in trees):
        without_nulls(root)
    report.root = root
    likely = Likely()
    document = Decoder(report, likely).pieces(root, Document, ())
    normalized = normalize(document, Context(report, likely))
    check_telemetry(document, sources, report)
    if skip_secrets:
        vault = closed_vault(normalized.sites, sources, report)
    else:
        vault = open_vault(normalized.sites, sources, report)
        check_tls_files(document, sources, report)
    if report.has_errors:
        raise report.invalid()
    return Loaded(
        config=normalized.config,
        digest=sources.digest(),
        vault=vault,
        warnings=report.warnings(),
        queue_source=normalized.queue_source,
    )


def _read(file: SourceFile, sources: Sources, report: Report) -> Tree:
    """One file's tree, expanded and in the present forms. What is wrong with it is reported."""
    places = report.places
    try:
        text = decode(file.content)
    except TextRefused as refused:
        line, column = Lines(refused.before).place(len(refused.before))
        places.add_file(file.name, refused.before)
        report.at(refused.code, refused.message, Place(file.name, line, column))
        return Tree(None, References(), False, [])
    number = places.add_file(file.name, text)
    tree = build(text, number, places)
    for finding in tree.findings[:MAX_COLLECTED]:
        place = places.place(mark_of(number, 0, finding.offset))
        report.at(finding.code, finding.message, place, render(tree.root, finding.steps))
    report.count(len(tree.findings[MAX_COLLECTED:]))
    if tree.root is None:
        return tree
    report.root = tree.root
    for finding in tree.findings:
        if finding.code in ("number_too_long", "tag", "unknown_alias"):
            report.close(finding.steps)
    has_nulls = tree.has_nulls
    for reference in tree.references:
        try:
            has_nulls |= expand(reference, sources.environment, places) is None
        except ExpansionFailed as failed:
            report.error(failed.code, failed.message, reference.steps)
            report.close(reference.steps)
    refuse_retired(tree.root, report)
    normalize_legacy(tree.root, report)
    return tree._replace(has_nulls=has_nulls)
