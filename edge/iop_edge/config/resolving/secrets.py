"""References to secrets: their forms, and their values once for a candidate (CFG-2).

No value goes anywhere but into the vault; what is wrong with one is said without it.
"""

from __future__ import annotations

from hashlib import sha256

from iop_edge.config.document import SecretDocument
from iop_edge.config.effective import SecretRef
from iop_edge.config.paths import render
from iop_edge.config.report import Report
from iop_edge.config.sources import SecretFile, SecretUnreadable, Sources
from iop_edge.config.vault import Vault
from iop_edge.config.yaml12.places import Steps
from iop_shared.ids import NodeId

TOKEN_FORMS = ("env", "file", "sha256")
UPSTREAM_FORMS = ("env", "file", "node_env", "node_file")
MIN_TOKEN_LENGTH = 32
MAX_SECRET_BYTES = 65_536

_OTHERS_CAN_READ = 0o004


def secret_ref(
    document: SecretDocument, forms: tuple[str, ...], steps: Steps, report: Report
) -> SecretRef:
    """The reference as it is effective. Reports one that has not exactly one of `forms`."""
    ref = SecretRef(
        env=document.env,
        file=document.file,
        sha256=document.sha256.lower() if document.sha256 is not None else None,
        node_env=document.node_env,
        node_file=document.node_file,
    )
    present = [name for name in ref.__struct_fields__ if getattr(ref, name) is not None]
    if not present and report.places.mark_of(report.root, steps) is None:
        return ref  # It was left out, which has been said.
    if len(present) != 1 or present[0] not in forms:
        known = f"{', '.join(f'`{one}`' for one in forms[:-1])} and `{forms[-1]}`"
        report.error(
            "bad_secret_reference", f"exactly one of {known} must stand in this reference", steps
        )
        report.close(steps)
    return ref


def warn_if_readable_by_others(path: str, file: SecretFile, steps: Steps, report: Report) -> None:
    """A secret that every user of the machine can read is none for long."""
    if file.mode & _OTHERS_CAN_READ:
        report.warning(
            "secret_readable_by_others",
            f"every user of this machine can read {path} (mode {file.mode:04o}); `chmod o-r` it",
            steps,
        )


class SecretSite:
    """One reference with the steps to where it was written."""

    __slots__ = ("node_id", "ref", "steps")

    def __init__(self, ref: SecretRef, steps: Steps, node_id: NodeId | None = None) -> None:
        self.ref = ref
        self.steps = steps
        self.node_id = node_id


class _Unusable(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def open_vault(sites: list[SecretSite], sources: Sources, report: Report) -> Vault:
    """Resolve every reference once. Reports what cannot be resolved and what is unsafe."""
    resolver = _Resolver(sources, report)
    values: dict[SecretRef, str] = {}
    digests: dict[NodeId, bytes] = {}
    first_of_digest: dict[bytes, Steps] = {}
    for site in sites:
        value = resolver.value(site)
        if value is not None:
            values[site.ref] = value
        if site.node_id is None:
            continue
        digest = _token_digest(site, value, report)
        if digest is None:
            continue
        first = first_of_digest.setdefault(digest, site.steps)
        if first is not site.steps:
            report.error(
                "duplicate_token",
                f"this token is that of {render(report.root, first)} too; every node has its own",
                site.steps,
            )
        digests[site.node_id] = digest
    return Vault(values=values, token_digests=digests, fingerprint_key=sources.fingerprint_key)


def closed_vault(sites: list[SecretSite], sources: Sources, report: Report) -> Vault:
    """A vault without values, for a check where the secrets are not at hand."""
    first_of_ref: dict[SecretRef, Steps] = {}
    digests: dict[NodeId, bytes] = {}
    for site in sites:
        if site.node_id is None or site.ref == SecretRef():
            continue
        first = first_of_ref.setdefault(site.ref, site.steps)
        if first is not site.steps:
            report.error(
                "duplicate_token",
                f"this token is that of {render(report.root, first)} too; every node has its own",
                site.steps,
            )
        if site.ref.sha256 is not None:
            digests[site.node_id] = bytes.fromhex(site.ref.sha256)
    return Vault(values={}, token_digests=digests, fingerprint_key=sources.fingerprint_key)


def _token_digest(site: SecretSite, value: str | None, report: Report) -> bytes | None:
    if site.ref.sha256 is not None:
        return bytes.fromhex(site.ref.sha256)
    if value is None:
        return None
    if len(value) < MIN_TOKEN_LENGTH:
        report.error(
            "short_token",
            f"this token has {len(value)} characters; it needs at least {MIN_TOKEN_LENGTH} "
            "(`iop-edge token new` makes one)",
            site.steps,
        )
        return None
    return sha256(value.encode("utf-8")).digest()


class _Resolver:
    """Reads every variable and file once, and reports each trouble once for each place."""

    def __init__(self, sources: Sources, report: Report) -> None:
        self._sources = sources
        self._report = report
        self._files: dict[str, str | _Unusable] = {}
        self._warned: set[str] = set()

    def value(self, site: SecretSite) -> str | None:
        try:
            if site.ref.env is not None:
                return self._variable(site.ref.env)
            if site.ref.file is not None:
                return self._file(site.ref.file, site.steps)
        except _Unusable as unusable:
            self._report.error(unusable.code, unusable.message, site.steps)
        return None

    def _variable(self, name: str) -> str:
        value = self._sources.environment.get(name)
        if value is None:
            raise _Unusable("unset_variable", f"the environment variable {name} is not set")
        return _checked(value, f"the environment variable {name}")

    def _file(self, path: str, steps: Steps) -> str:
        known = self._files.get(path)
        if known is None:
            try:
                known = self._read(path, steps)
            except _Unusable as unusable:
                known = unusable
            self._files[path] = known
        if isinstance(known, _Unusable):
            raise known
        return known

    def _read(self, path: str, steps: Steps) -> str:
        try:
            secret = self._sources.read_secret(path)
        except SecretUnreadable as unreadable:
            raise _Unusable(
                "secret_unreadable", f"the secret file {path} {unreadable.reason}"
            ) from None
        if len(secret.content) > MAX_SECRET_BYTES:
            raise _Unusable(
                "bad_secret",
                f"the secret file {path} has {len(secret.content)} bytes; a secret has at most "
                f"{MAX_SECRET_BYTES}",
            )
        warn_if_readable_by_others(path, secret, steps, self._report)
        try:
            text = secret.content.decode("utf-8")
        except UnicodeDecodeError:
            raise _Unusable("bad_secret", f"the secret file {path} is no UTF-8 text") from None
        return _checked(text.removesuffix("\n").removesuffix("\r"), f"the secret file {path}")


def _checked(value: str, where: str) -> str:
    if not value:
        raise _Unusable("empty_secret", f"{where} is empty")
    if not value.isprintable() or value != value.strip():
        raise _Unusable(
            "bad_secret",
            f"{where} holds a line break, a control character or a space at an end, which no "
            "secret may",
        )
    return value
