from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from iop_node.cli.main import main
from iop_node.identity import SettingsInvalid
from iop_node.settings import read_settings

TOKEN = "iop_node_0123abcd_" + "s" * 40

# For a test that reads the real environment below its own.
UNSET: dict[str, str | None] = {
    "IOP_EDGE": None,
    "IOP_NODE_TOKEN": None,
    "IOP_NODE_TOKEN_FILE": None,
    "IOP_EDGE_CA_FILE": None,
}


def environment(**changes: str | None) -> dict[str, str]:
    whole = {"IOP_EDGE": "edge.example:50051", "IOP_NODE_TOKEN": TOKEN, **changes}
    return {name: value for name, value in whole.items() if value is not None}


@pytest.mark.req("SEC-3")
@pytest.mark.parametrize(
    ("changes", "is_plaintext"),
    [
        ({}, False),
        ({"IOP_EDGE": "10.0.0.1:1"}, False),
        ({"IOP_EDGE": "127.0.0.1:1"}, True),
        ({"IOP_EDGE": "127.9.9.9:1"}, True),
        ({"IOP_EDGE": "[::1]:1"}, True),
        ({"IOP_EDGE": "localhost:1"}, True),
        ({"IOP_EDGE": "localhost.example:1"}, False),
        ({"IOP_EDGE": "127.0.0.1:1", "IOP_EDGE_CA_FILE": "/ca.pem"}, False),
        ({"IOP_EDGE_INSECURE": "1"}, True),
        ({"IOP_EDGE_INSECURE": "0"}, False),
        ({"IOP_EDGE_INSECURE": "true"}, False),
        ({"IOP_EDGE_INSECURE": ""}, False),
    ],
)
def test_a_node_uses_tls_unless_its_edge_is_on_loopback_or_plaintext_was_asked_for(
    changes: dict[str, str], is_plaintext: bool
) -> None:
    settings = read_settings(environment(**changes))
    assert settings.is_plaintext is is_plaintext
    if is_plaintext:
        assert settings.tls_context() is None


@pytest.mark.req("NODE-1")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"IOP_EDGE": None}, "IOP_EDGE"),
        ({"IOP_EDGE": "edge"}, "IOP_EDGE"),
        ({"IOP_EDGE": "edge:0"}, "IOP_EDGE"),
        ({"IOP_EDGE": "http://edge:1/"}, "IOP_EDGE"),
        ({"IOP_EDGE": "http://edge:1"}, "IOP_EDGE"),
        ({"IOP_EDGE": "user@edge:1"}, "IOP_EDGE"),
        ({"IOP_EDGE": "fe80::1:50051"}, "brackets"),
        ({"IOP_EDGE": "\udcff:1"}, "IOP_EDGE"),
        ({"IOP_NODE_METRICS": "http://localhost:9465"}, "IOP_NODE_METRICS"),
        ({"IOP_EDGE_INSECURE": "1", "IOP_EDGE_CA_FILE": "/ca.pem"}, "keep either"),
        ({"IOP_NODE_TOKEN": None, "IOP_NODE_TOKEN_FILE": "/dev/zero"}, "larger than"),
        ({"IOP_NODE_TOKEN": None, "IOP_NODE_TOKEN_FILE": "/\udcff"}, "IOP_NODE_TOKEN_FILE"),
        ({"IOP_NODE_TOKEN": None}, "IOP_NODE_TOKEN"),
        ({"IOP_NODE_TOKEN": "short"}, "IOP_NODE_TOKEN"),
        ({"IOP_NODE_TOKEN_FILE": "/f"}, "both set"),
        ({"IOP_NODE_TOKEN": None, "IOP_NODE_TOKEN_FILE": "/absent/token"}, "/absent/token"),
        ({"IOP_NODE_CERT_FILE": "/c"}, "IOP_NODE_KEY_FILE"),
        ({"IOP_NODE_KEY_FILE": "/k"}, "IOP_NODE_CERT_FILE"),
        ({"IOP_LOG_LEVEL": "loud"}, "IOP_LOG_LEVEL"),
        ({"IOP_LOG_FORMAT": "xml"}, "IOP_LOG_FORMAT"),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_named_and_the_exit_status_is_2(
    changes: dict[str, str | None], named: str
) -> None:
    ran = CliRunner().invoke(main, ["run"], env={**UNSET, **environment(**changes)})
    assert ran.exit_code == 2
    assert named in ran.stderr
    assert TOKEN not in ran.output


@pytest.mark.req("NODE-1", "SEC-1")
def test_the_token_may_lie_in_a_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    settings = read_settings(environment(IOP_NODE_TOKEN=None, IOP_NODE_TOKEN_FILE=str(file)))
    assert settings.token == TOKEN
    assert TOKEN not in repr(settings)


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("token", ["t" * 31, "tö" * 20, "t" * 40 + "\x00t"])
def test_what_is_no_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(SettingsInvalid, match="32 or more printable ASCII") as caught:
        read_settings(environment(IOP_NODE_TOKEN=token))
    assert token not in str(caught.value)
