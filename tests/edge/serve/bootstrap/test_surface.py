from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from iop_edge.config.effective import Bootstrap, EdgeIdentity, EffectiveConfig
from iop_edge.serve.bootstrap.join_line import SCRIPT
from iop_edge.serve.bootstrap.surface import BOOTSTRAP_LIMITS, BootstrapSurface, render_plain
from iop_edge.serve.http.listener import HttpListener
from tests.edge.serve.rig import Answer, Rig

from .conftest import CONTENT, NAMED, UNNAMED


@pytest.fixture
async def bootstrap(rig: Rig, folder: Path) -> AsyncIterator[Rig]:
    config = EffectiveConfig(
        edge=EdgeIdentity(advertise="edge.example:50051"),
        bootstrap=Bootstrap(listen="127.0.0.1:0", artifact_dir=str(folder)),
    )
    surface = BootstrapSurface(config)
    async with HttpListener(
        surface.router(), config.bootstrap.listen, limits=BOOTSTRAP_LIMITS, render=render_plain
    ) as listener:
        surface.bootstrap_listens = listener.address
        rig.listener = listener
        yield rig


@pytest.fixture
def no_artifacts(folder: Path) -> None:
    folder.rename(folder.with_name("gone"))


async def ask(rig: Rig, path: str, method: str = "GET") -> Answer:
    client = await rig.connect()
    client.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode("latin-1"))
    return await client.answer()


@pytest.mark.req("NODE-2")
async def test_the_script_is_served_as_it_is(bootstrap: Rig) -> None:
    answer = await ask(bootstrap, "/join.py")
    assert (answer.status, answer.body) == (200, SCRIPT)


@pytest.mark.req("NODE-2")
async def test_a_wheel_is_served_whole(bootstrap: Rig) -> None:
    answer = await ask(bootstrap, f"/artifacts/{NAMED}")
    assert (answer.status, answer.body) == (200, CONTENT)


@pytest.mark.req("NODE-2")
async def test_the_listener_itself_tells_the_line_with_where_it_really_listens(
    bootstrap: Rig, folder: Path
) -> None:
    answer = await ask(bootstrap, "/")
    *comments, line = answer.body.decode().splitlines()
    assert all(comment.startswith("# ") for comment in comments)
    assert line.startswith("python3 -c ")
    assert f"http://{bootstrap.listener.address}/join.py {sha256(SCRIPT).hexdigest()}" in line
    assert "--edge edge.example:50051" in line
    manifest = (folder / "manifest.json").read_bytes()
    assert f"--manifest {sha256(manifest).hexdigest()}" in line


@pytest.mark.req("NODE-2", "SEC-1")
@pytest.mark.parametrize(
    "path",
    [
        f"/artifacts/{UNNAMED}",
        "/artifacts/manifest.json",
        "/artifacts/",
        "/artifacts/../manifest.json",
        "/artifacts/..%2f..%2fsecret",
        "/artifacts/%2e%2e/secret",
        "/artifacts//etc/passwd",
        f"/artifacts/{NAMED}%00",
        "/artifacts/%ff",
        "/edge.yaml",
    ],
)
async def test_no_path_leads_out_of_the_folder(bootstrap: Rig, folder: Path, path: str) -> None:
    (folder.parent / "secret").write_text("secret")
    answer = await ask(bootstrap, path)
    assert answer.status == 404
    assert answer.body.startswith(b"not_found: ")
    assert b"secret" not in answer.body


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize("path", ["/", "/manifest.json", f"/artifacts/{NAMED}"])
async def test_an_edge_without_artifacts_says_what_would_make_them(
    no_artifacts: None, bootstrap: Rig, path: str
) -> None:
    answer = await ask(bootstrap, path)
    assert answer.status == 404
    assert b"make artifacts" in answer.body


@pytest.mark.req("NODE-2")
async def test_only_reading_is_allowed(bootstrap: Rig) -> None:
    assert (await ask(bootstrap, "/join.py", "DELETE")).status == 405
    client = await bootstrap.connect()
    client.send(
        f"HEAD /artifacts/{NAMED} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    )
    head = await client.closed()
    assert f"content-length: {len(CONTENT)}".encode() in head
    assert head.endswith(b"\r\n\r\n")
