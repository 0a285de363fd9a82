"""What the bootstrap listener serves: the join line, the join script, the manifest, the wheels.

All of it is public and the same for every node: no token, no id and no secret passes here. What
is fetched is trusted for its digest, which the join line pins, and not for where it came from.

  GET /                  the line, for whichever node the token is of (NODE-2)
  GET /join.py           the script
  GET /manifest.json     what there is, with checksums
  GET /artifacts/FILE    one wheel
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from iop_edge.config.effective import EffectiveConfig, IngressLimits
from iop_edge.serve.bootstrap.artifacts import MANIFEST, ArtifactFolder, NoArtifacts
from iop_edge.serve.bootstrap.join_line import SCRIPT, SCRIPT_PATH, NotJoinable, join_line
from iop_edge.serve.http.errors import Rendered
from iop_edge.serve.http.request import Request
from iop_edge.serve.http.routes import Route, Router
from iop_shared.errors import Code, Fault

BOOTSTRAP_LIMITS = IngressLimits(
    max_body_bytes=1024, max_header_bytes=16_384, receive_timeout_ms=10_000, max_connections=64
)

CHUNK_BYTES = 262_144

_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]


class BootstrapSurface:
    """`server_listens` and `bootstrap_listens` are where the edge really listens, once it does."""

    def __init__(self, config: EffectiveConfig) -> None:
        self.server_listens = config.server.listen
        self.bootstrap_listens = config.bootstrap.listen
        self._config = config
        self._folder = ArtifactFolder(Path(config.bootstrap.artifact_dir))

    def router(self) -> Router:
        return Router(
            [
                Route(method="GET", path="/", handler=self._line),
                Route(method="GET", path=f"/{SCRIPT_PATH}", handler=self._script),
                Route(method="GET", path=f"/{MANIFEST}", handler=self._manifest),
                Route(method="GET", path="/artifacts/{tail}", handler=self._artifact),
            ],
            render=render_plain,
        )

    async def _line(self, request: Request) -> None:
        try:
            _, digest = await asyncio.to_thread(self._folder.manifest)
            made = await asyncio.to_thread(
                join_line,
                self._config,
                manifest_sha256=digest,
                server_listens=self.server_listens,
                bootstrap_listens=self.bootstrap_listens,
            )
        except (NoArtifacts, NotJoinable) as error:
            raise Fault(Code.NOT_FOUND, str(error)) from None
        comments = (
            "The machine that runs this becomes a node of the edge. Python 3.11 or newer is all it",
            "needs; the node's token is asked for.",
            *made.notes,
        )
        text = "".join(f"# {comment}\n" for comment in comments) + made.line + "\n"
        await request.respond(200, text.encode(), _TEXT)

    async def _script(self, request: Request) -> None:
        await request.respond(200, SCRIPT, [(b"content-type", b"text/x-python; charset=utf-8")])

    async def _manifest(self, request: Request) -> None:
        try:
            content = await asyncio.to_thread(self._folder.manifest_bytes)
        except NoArtifacts as error:
            raise Fault(Code.NOT_FOUND, str(error)) from None
        await request.respond(200, content)

    async def _artifact(self, request: Request) -> None:
        try:
            file, size = await asyncio.to_thread(self._folder.open, request.tail)
        except NoArtifacts as error:
            raise Fault(Code.NOT_FOUND, str(error)) from None
        with file:
            headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", b"%d" % size),
            ]
            await request.start(200, headers)
            left = 0 if request.method == "HEAD" else size
            while left and (chunk := await asyncio.to_thread(file.read, min(CHUNK_BYTES, left))):
                left -= len(chunk)
                await request.write(chunk)
            await request.finish()


def render_plain(
    fault: Fault, path: str, headers: Mapping[bytes, bytes], request_id: str
) -> Rendered:
    """One line for a person or a script."""
    return Rendered(fault.shape.status, _TEXT, f"{fault.code.value}: {fault.message}\n".encode())
