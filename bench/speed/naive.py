"""What one would write in an afternoon: a one-process proxy of aiohttp.

python -m bench.speed.naive UPSTREAM      prints {"port": …} and serves until it is ended

It asks for a token and relays what comes, on asyncio's own loop, as `web.run_app` runs it.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
from collections.abc import AsyncIterator

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from bench.speed.running import CALLER_TOKEN

UPSTREAM = web.AppKey("UPSTREAM", ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    if not hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {CALLER_TOKEN}"):
        return web.json_response({"error": {"message": "invalid token"}}, status=401)
    body, headers = await request.read(), {"Content-Type": request.content_type}
    async with request.app[UPSTREAM].post(request.path, data=body, headers=headers) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )
        response = web.StreamResponse(
            status=answer.status, headers={"Content-Type": "text/event-stream"}
        )
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


def main(upstream: int) -> None:
    async def session(app: web.Application) -> AsyncIterator[None]:
        async with ClientSession(
            f"http://127.0.0.1:{upstream}",
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None),
        ) as app[UPSTREAM]:
            yield

    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", relay)
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    web.run_app(app, sock=listener, print=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
