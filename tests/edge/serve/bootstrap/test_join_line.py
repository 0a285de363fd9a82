from __future__ import annotations

import base64
import shlex
import ssl
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trustme

from iop_edge.config.effective import Bootstrap, EdgeIdentity, EffectiveConfig, Server, Tls
from iop_edge.serve.bootstrap.join_line import (
    SCRIPT,
    JoinLine,
    NodeFiles,
    NotJoinable,
    join_line,
)
from iop_shared.ids import NodeId

DIGEST = "d" * 64


def config(
    *,
    listen: str = "127.0.0.1:50051",
    advertise: str | None = None,
    tls: Tls | None = None,
    bootstrap: Bootstrap | None = None,
) -> EffectiveConfig:
    return EffectiveConfig(
        edge=EdgeIdentity(advertise=advertise),
        server=Server(listen=listen, tls=tls),
        bootstrap=bootstrap or Bootstrap(),
    )


def made(of: EffectiveConfig, **options: Any) -> JoinLine:
    return join_line(of, manifest_sha256=DIGEST, node_id=NodeId("gpu-a"), **options)


def option(line: str, name: str) -> str | None:
    words = shlex.split(line)
    return words[words.index(name) + 1] if name in words else None


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(tmp_path: Path, authority: trustme.CA) -> Tls:
    """A chain that ends in its own authority."""
    issued = authority.issue_cert("edge.example")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(issued.cert_chain_pems[0].bytes() + authority.cert_pem.bytes())
    issued.private_key_pem.write_to_path(key)
    return Tls(cert_file=str(chain), key_file=str(key))


@pytest.mark.req("NODE-2")
def test_it_is_one_line_that_pins_the_script_and_the_manifest() -> None:
    line = made(config(advertise="edge.example:50051")).line
    assert "\n" not in line
    words = shlex.split(line)
    assert words[:2] == ["python3", "-c"]
    assert words[4] == sha256(SCRIPT).hexdigest()
    assert option(line, "--manifest") == DIGEST
    assert "--node=gpu-a" in words
    compile(words[2], "line", "exec")


@pytest.mark.req("NODE-2", "CFG-21")
@pytest.mark.parametrize(
    ("written", "edge", "url"),
    [
        (config(), "127.0.0.1:50051", "http://127.0.0.1:18080/"),
        (config(advertise="e:1"), "e:1", "http://127.0.0.1:18080/"),
        (config(advertise="e:1", listen="0.0.0.0:0"), "e:1", "http://127.0.0.1:18080/"),
        (config(advertise="e:1", bootstrap=Bootstrap(advertise="b:2")), "e:1", "http://b:2/"),
        (
            config(advertise="e:1", bootstrap=Bootstrap(advertise="https://b.example/iop")),
            "e:1",
            "https://b.example/iop/",
        ),
        (
            config(advertise="[2001:db8::1]:1", bootstrap=Bootstrap(listen="[::]:2")),
            "[2001:db8::1]:1",
            "http://[2001:db8::1]:2/",
        ),
        (
            config(listen="10.0.0.1:3", bootstrap=Bootstrap(listen="0.0.0.0:2")),
            "10.0.0.1:3",
            "http://10.0.0.1:2/",
        ),
    ],
)
def test_advertised_addresses_stand_over_those_that_are_listened_on(
    written: EffectiveConfig, edge: str, url: str
) -> None:
    line = made(written)
    assert (line.edge, line.bootstrap) == (edge, url)
    assert option(line.line, "--edge") == edge
    assert option(line.line, "--from") == url


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize(
    ("written", "key"),
    [
        (config(listen="0.0.0.0:50051"), "edge.advertise"),
        (config(listen="[::]:50051"), "edge.advertise"),
        (config(listen="127.0.0.1:0"), "edge.advertise"),
        (config(bootstrap=Bootstrap(listen="127.0.0.1:0")), "bootstrap.advertise"),
    ],
)
def test_an_address_that_nobody_could_dial_is_told_with_the_key_that_is_missing(
    written: EffectiveConfig, key: str
) -> None:
    with pytest.raises(NotJoinable, match=key):
        made(written)


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize(
    ("written", "is_local"),
    [
        (config(), True),
        (config(advertise="e:1"), True),
        (config(advertise="e:1", bootstrap=Bootstrap(advertise="localhost:2")), True),
        (config(advertise="e:1", bootstrap=Bootstrap(advertise="b:2")), False),
    ],
)
def test_a_line_for_this_machine_alone_says_so(written: EffectiveConfig, is_local: bool) -> None:
    notes = made(written).notes
    assert any("this machine alone" in note for note in notes) is is_local


@pytest.mark.req("SEC-3")
@pytest.mark.parametrize(
    ("edge", "has_tls", "is_insecure"),
    [("e:1", False, True), ("127.0.0.1:1", False, False), ("e:1", True, False)],
)
def test_only_a_plaintext_edge_off_loopback_needs_the_word_insecure(
    tls: Tls, edge: str, has_tls: bool, is_insecure: bool
) -> None:
    line = made(config(advertise=edge, tls=tls if has_tls else None)).line
    assert ("--insecure" in shlex.split(line)) is is_insecure


@pytest.mark.req("SEC-3", "NODE-2")
def test_an_authority_of_the_fetch_alone_makes_no_node_ask_a_plaintext_edge_for_tls(
    tls: Tls,
) -> None:
    made_of = made(config(bootstrap=Bootstrap(tls=tls)))
    words = shlex.split(made_of.line)
    assert "--ca" in words
    assert "--insecure" in words
    assert not any("plaintext" in note for note in made_of.notes), "on loopback it is no concern"


@pytest.mark.req("SEC-3")
def test_the_edges_own_authority_is_pinned_once_and_checks_the_fetch(
    tls: Tls, authority: trustme.CA
) -> None:
    written = config(advertise="edge.example:1", tls=tls, bootstrap=Bootstrap(tls=tls))
    line = made(written).line
    pinned = option(line, "--ca")
    assert pinned is not None
    assert _pem(base64.b64decode(pinned)) == authority.cert_pem.bytes()
    assert "create_default_context(cadata=" in shlex.split(line)[2]
    assert option(line, "--from") == "https://127.0.0.1:18080/"
    assert len(line) < 4000, "a terminal's line holds 4095 characters"


@pytest.mark.req("SEC-3")
def test_an_authority_that_is_not_in_the_chain_can_be_named(
    tls: Tls, tmp_path: Path, authority: trustme.CA
) -> None:
    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(authority.issue_cert("edge.example").cert_chain_pems[0].bytes())
    written = config(advertise="e:1", tls=Tls(cert_file=str(leaf), key_file=tls.key_file))
    public = made(written)
    assert option(public.line, "--ca") is None
    assert any("--ca-file" in note for note in public.notes)
    named = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(named)
    assert option(made(written, ca_file=str(named)).line, "--ca") is not None
    with pytest.raises(NotJoinable, match="--ca-file"):
        made(config(tls=Tls(cert_file=str(leaf), key_file=tls.key_file)))


@pytest.mark.req("SEC-3")
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_read_is_named(
    tls: Tls, tmp_path: Path, content: str | None
) -> None:
    wrong = tmp_path / "wrong.pem"
    if content is not None:
        wrong.write_text(content)
    with pytest.raises(NotJoinable, match=r"wrong\.pem"):
        made(config(advertise="e:1", tls=Tls(cert_file=str(wrong), key_file=tls.key_file)))
    with pytest.raises(NotJoinable, match=r"wrong\.pem"):
        made(config(advertise="e:1", tls=tls), ca_file=str(wrong))


@pytest.mark.req("SEC-3")
def test_an_edge_that_asks_for_certificates_has_them_named_in_the_line(tls: Tls) -> None:
    asking = Tls(cert_file=tls.cert_file, key_file=tls.key_file, client_ca_file="ca.pem")
    written = config(advertise="e:1", tls=asking)
    line = made(written, files=NodeFiles(cert_file="/c.pem", key_file="/k.pem")).line
    assert (option(line, "--cert-file"), option(line, "--key-file")) == ("/c.pem", "/k.pem")
    unnamed = made(written)
    assert option(unnamed.line, "--cert-file") == "node.crt"
    assert any("node.crt and node.key" in note for note in unnamed.notes)


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("node_id", ["o'hara's node", "a b", "$(touch x)", "日本", "-x", "a\\b"])
def test_whatever_an_id_holds_it_stays_one_word(node_id: str) -> None:
    line = join_line(config(), manifest_sha256=DIGEST, node_id=NodeId(node_id), token="<of 'x'>")
    assert f"--node={node_id}" in shlex.split(line.line)
    assert shlex.split(line.line)[0] == "IOP_NODE_TOKEN=<of 'x'>"


def _pem(der: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(der).encode()
