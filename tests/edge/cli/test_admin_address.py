from __future__ import annotations

from pathlib import Path

import click
import pytest

from iop_edge.cli.admin_address import admin_address

BLOCK = 'admin:\n  # for operators\n  listen: "127.0.0.1:7001"\n'
FLOW = 'admin: { listen: "127.0.0.1:7001" }\n'
OVER_LINES = 'admin: {\n  listen: "127.0.0.1:7001"\n}\n'


def address_in(tmp_path: Path, content: str | bytes, **environment: str) -> str:
    file = tmp_path / "edge.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return admin_address(None, [file], environment)


@pytest.mark.req("REF-1")
@pytest.mark.parametrize("section", [BLOCK, FLOW, OVER_LINES])
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("{section}models: [\n", id="a list that is not closed, after it"),
        pytest.param("models: [\n{section}", id="a list that is not closed, before it"),
        pytest.param('edge: {{ name: "Lab }}\n{section}', id="a quote that is not closed"),
        pytest.param("{section}openai:\n\tenabled: true\n", id="a tab"),
        pytest.param("{section}nodes: []\nnodes: []\n", id="a key that stands twice"),
        pytest.param("{section}admin: {{}}\n", id="the section itself twice"),
        pytest.param("{section}---\nedge: {{}}\n", id="two documents"),
        pytest.param("{section}edge: {{ name: \0 }}\n", id="a NUL"),
        pytest.param("{section}edge: !lab {{}}\n", id="a tag"),
        pytest.param("{section}edge: *lab\n", id="an alias of nothing"),
        pytest.param("{section}x: " + "[" * 2000 + "\n", id="far too deep"),
        pytest.param("{section}capcity: 4\n", id="a key that nobody knows"),
    ],
)
def test_a_file_that_is_no_config_still_says_whom_to_ask_about_it(
    tmp_path: Path, broken: str, section: str
) -> None:
    assert address_in(tmp_path, broken.format(section=section)) == "127.0.0.1:7001"


@pytest.mark.req("REF-1")
@pytest.mark.parametrize("section", [BLOCK, FLOW, OVER_LINES])
def test_bytes_and_line_endings_that_are_refused_do_not_hide_the_address(
    tmp_path: Path, section: str
) -> None:
    windows = section.replace("\n", "\r\n")
    for content in (
        section.encode() + b"edge: { name: \xff }\n",
        b"edge: { name: \xff }\n" + section.encode(),
        b"\xef\xbb\xbf" + section.encode() + b"models: [\n",
        windows.encode() + b"models: [\r\n",
        b"models: [\r\n" + windows.encode(),
    ):
        assert address_in(tmp_path, content) == "127.0.0.1:7001"


@pytest.mark.req("REF-1")
@pytest.mark.parametrize(
    "content",
    [
        "",
        "- a\n",
        "{}",
        "admin: 7\n",
        "admin: { listen: 7 }\n",
        "admin: [\n",
        "admn: { listen: 'x:1' }\nx: [\n",
        "administrator: { listen: 'x:1' }\nx: [\n",
        "edge:\n  admin: { listen: 'x:1' }\nx: [\n",
    ],
)
def test_a_file_without_a_readable_address_leaves_the_default(tmp_path: Path, content: str) -> None:
    assert address_in(tmp_path, content) == "127.0.0.1:18081"


@pytest.mark.req("REF-1")
def test_what_is_said_beside_the_file_stands_over_it(tmp_path: Path) -> None:
    assert address_in(tmp_path, FLOW, IOP_EDGE_ADMIN="[::1]:7002") == "[::1]:7002"
    assert admin_address("unix:/a", [], {"IOP_EDGE_ADMIN": "[::1]:7002"}) == "unix:/a"


@pytest.mark.req("CFG-2")
def test_the_address_may_come_from_the_environment(tmp_path: Path) -> None:
    text = "admin: { listen: '127.0.0.1:${PORT:-7003}' }\n"
    assert address_in(tmp_path, text) == "127.0.0.1:7003"
    assert address_in(tmp_path, text + "x: [\n", PORT="7004") == "127.0.0.1:7004"


@pytest.mark.req("REF-1")
def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"):
        admin_address(None, [tmp_path / "none.yaml"], {})
