"""TLS on the session, over real sockets: who trusts whom, and what is said where they do not."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from iop_edge.config.effective import Tls
from iop_edge.serve.http.address import ListenError
from iop_node.identity import SettingsInvalid
from iop_node.link.dialer import Dialer, TokenRefused
from iop_node.settings import read_settings

from .rig import TOKEN, Edge, dialer, running

URI = "urn:iop:node:gpu-a"
COMMON_NAME = NameOID.COMMON_NAME


class Authority:
    """A certificate authority whose certificates are files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._authority = trustme.CA()
        self.file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, *names: str) -> tuple[Path, Path]:
        """Files of a certificate and its key."""
        issued = self._authority.issue_cert(*names)
        return self._write(
            b"".join(pem.bytes() for pem in issued.cert_chain_pems), issued.private_key_pem.bytes()
        )

    def issue_for_client(self, *names: str, common_name: str | None = None) -> tuple[Path, Path]:
        """Exactly these alternative names (URIs where they hold a colon) and this common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [] if common_name is None else [x509.NameAttribute(COMMON_NAME, common_name)]
        now = datetime.now(UTC)
        issuer = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )
        if names:
            alternatives = [
                x509.UniformResourceIdentifier(name) if ":" in name else x509.DNSName(name)
                for name in names
            ]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        signer = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        certificate = builder.sign(signer, SHA256())
        return self._write(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def _write(self, certificate: bytes, key: bytes) -> tuple[Path, Path]:
        stem = self._folder / str(len(list(self._folder.iterdir())))
        files = stem.with_suffix(".crt"), stem.with_suffix(".key")
        files[0].write_bytes(certificate)
        files[1].write_bytes(key)
        return files

    def tls(self, *names: str, client_ca: Authority | None = None) -> Tls:
        certificate, key = self.issue(*names)
        return Tls(
            cert_file=str(certificate),
            key_file=str(key),
            client_ca_file=None if client_ca is None else str(client_ca.file),
        )


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def node_tls(
    trusted: Authority | None, certificate: tuple[Path, Path] | None = None
) -> ssl.SSLContext | None:
    """What a node makes of these files, by its own settings."""
    environment = {"IOP_EDGE": "edge.example:1", "IOP_NODE_TOKEN": TOKEN}
    if trusted is not None:
        environment["IOP_EDGE_CA_FILE"] = str(trusted.file)
    if certificate is not None:
        environment["IOP_NODE_CERT_FILE"] = str(certificate[0])
        environment["IOP_NODE_KEY_FILE"] = str(certificate[1])
    return read_settings(environment).tls_context()


async def reasons(node: Dialer, count: int) -> list[str]:
    """Why the first `count` attempts of a node failed, as its log says."""
    with capture_logs() as lines:
        task = asyncio.create_task(node.run())
        try:
            async with asyncio.timeout(20):
                while len(found := [x for x in lines if x["event"] == "edge_lost"]) < count:
                    assert not task.done()
                    await asyncio.sleep(0.01)
        finally:
            await node.drain(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return [str(line["reason"]) for line in found]


@pytest.mark.req("SEC-3", "NODE-1")
async def test_a_node_joins_an_edge_whose_authority_it_was_given(ours: Authority) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1"))
    async with (
        edge.serving() as port,
        running(dialer(port, tls=node_tls(ours))),
    ):
        await edge.until(edge.is_connected)
        assert await edge.ask(b"over TLS") == b"over TLS"


@pytest.mark.req("SEC-3", "NODE-6")
@pytest.mark.parametrize("is_public", [False, True])
async def test_an_edge_of_another_authority_is_told_as_such_and_tried_again(
    ours: Authority, theirs: Authority, is_public: bool
) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1"))
    async with edge.serving() as port:
        node = dialer(port, tls=node_tls(None if is_public else theirs))
        said = await reasons(node, 2)
    assert [reason.partition(":")[0] for reason in said] == ["tls_untrusted"] * 2
    assert "IOP_EDGE_CA_FILE" in said[0]
    assert edge.pool.events == []


@pytest.mark.req("SEC-3")
async def test_a_certificate_for_another_host_is_told_as_such(ours: Authority) -> None:
    edge = Edge(tls=ours.tls("edge.example"))
    async with edge.serving() as port:
        said = await reasons(dialer(port, tls=node_tls(ours)), 1)
    assert said[0].startswith("tls_wrong_name:")


@pytest.mark.req("SEC-3")
async def test_a_node_that_wants_tls_never_falls_back_to_plaintext(ours: Authority) -> None:
    edge = Edge()
    async with edge.serving() as port:
        said = await reasons(dialer(port, tls=node_tls(ours)), 1)
    assert said[0].startswith("tls_not_spoken:")
    assert edge.pool.events == []


@pytest.mark.req("SEC-3")
async def test_a_plaintext_node_is_told_why_an_edge_with_tls_hangs_up(ours: Authority) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1"))
    async with edge.serving() as port:
        said = await reasons(dialer(port), 1)
    assert said[0].startswith("closed_early:")


@pytest.mark.req("NODE-9")
@pytest.mark.parametrize(
    ("names", "common_name"),
    [(("gpu-a",), None), (("gpu-x", "gpu-a"), "gpu-x"), ((), "gpu-a"), ((URI,), None)],
)
async def test_a_client_certificate_of_the_same_node_lets_it_in(
    ours: Authority, theirs: Authority, names: tuple[str, ...], common_name: str | None
) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1", client_ca=theirs))
    own = theirs.issue_for_client(*names, common_name=common_name)
    async with (
        edge.serving() as port,
        running(dialer(port, tls=node_tls(ours, own))),
    ):
        await edge.until(edge.is_connected)


@pytest.mark.req("NODE-9")
@pytest.mark.parametrize(
    ("names", "common_name"),
    [
        (("gpu-b",), None),
        (("gpu-b",), "gpu-a"),
        (("GPU-A",), None),
        (("*",), None),
        ((), "gpu-b"),
        ((URI + "b",), None),
    ],
)
async def test_a_client_certificate_of_another_node_is_refused_like_a_wrong_token(
    ours: Authority, theirs: Authority, names: tuple[str, ...], common_name: str | None
) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1", client_ca=theirs))
    other = theirs.issue_for_client(*names, common_name=common_name)
    async with edge.serving() as port:
        node = dialer(port, tls=node_tls(ours, other))
        with pytest.raises(TokenRefused, match="certificate is not that of node gpu-a"):
            async with asyncio.timeout(10):
                await node.run()
    assert edge.pool.events == []


@pytest.mark.req("NODE-9")
async def test_a_wrong_token_beside_a_good_certificate_learns_nothing_of_the_certificate(
    ours: Authority,
) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1", client_ca=ours))
    own = ours.issue("gpu-b")
    async with edge.serving() as port:
        node = dialer(port, token="w" * 40, tls=node_tls(ours, own))
        with pytest.raises(TokenRefused, match="the token is not one of this edge's nodes"):
            async with asyncio.timeout(10):
                await node.run()


@pytest.mark.req("SEC-3")
@pytest.mark.parametrize("has_certificate", [False, True])
async def test_without_a_certificate_of_the_asked_authority_there_is_no_session(
    ours: Authority, theirs: Authority, has_certificate: bool
) -> None:
    edge = Edge(tls=ours.tls("127.0.0.1", client_ca=ours))
    foreign = theirs.issue("gpu-a") if has_certificate else None
    async with edge.serving() as port:
        said = await reasons(dialer(port, tls=node_tls(ours, foreign)), 1)
    assert said[0].startswith("closed_early:")
    assert "IOP_NODE_CERT_FILE" in said[0]
    assert edge.pool.events == []


@pytest.fixture
def no_pem(tmp_path: Path) -> Path:
    path = tmp_path / "no.pem"
    path.write_text("no certificate")
    return path


@pytest.mark.req("CFG-21")
@pytest.mark.parametrize("name", ["cert_file", "key_file", "client_ca_file"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_tls_file_that_is_none_is_named_at_the_start(
    ours: Authority, no_pem: Path, name: str, is_there: bool
) -> None:
    wrong = no_pem if is_there else no_pem.with_name("absent.pem")
    good = ours.tls("127.0.0.1")
    files = {"cert_file": good.cert_file, "key_file": good.key_file, "client_ca_file": None}
    edge = Edge(tls=Tls(**{**files, name: str(wrong)}))  # type: ignore[arg-type]
    with pytest.raises(ListenError, match=str(wrong)):
        async with edge.serving():
            pass


@pytest.mark.req("NODE-1")
@pytest.mark.parametrize("variable", ["IOP_EDGE_CA_FILE", "IOP_NODE_CERT_FILE"])
def test_a_node_names_the_variable_whose_file_is_no_certificate(
    no_pem: Path, variable: str
) -> None:
    environment = {"IOP_EDGE": "edge.example:1", "IOP_NODE_TOKEN": TOKEN, variable: str(no_pem)}
    if variable == "IOP_NODE_CERT_FILE":
        environment["IOP_NODE_KEY_FILE"] = str(no_pem)
    with pytest.raises(SettingsInvalid, match=f"{variable}.*no.pem.*no usable PEM"):
        read_settings(environment).tls_context()


@pytest.mark.req("NODE-1")
def test_a_node_asks_no_terminal_for_the_password_of_its_key(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("node.example")
    certificate, key = tmp_path / "node.crt", tmp_path / "node.key"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    plain = load_pem_private_key(issued.private_key_pem.bytes(), None)
    secret = BestAvailableEncryption(b"password")
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, secret))
    environment = {
        "IOP_EDGE": "edge.example:1",
        "IOP_NODE_TOKEN": TOKEN,
        "IOP_NODE_CERT_FILE": str(certificate),
        "IOP_NODE_KEY_FILE": str(key),
    }
    with pytest.raises(SettingsInvalid, match=r"IOP_NODE_KEY_FILE.*its key has a password"):
        read_settings(environment).tls_context()
