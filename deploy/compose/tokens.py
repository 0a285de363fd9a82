"""Tokens of a composed site, made at its first start and kept in volumes.

    tokens.py make NODE…   make what is missing; print how to ask the edge, but no token
    tokens.py caller       print the caller's token

Under /tokens each folder is a volume that only its holder mounts: a node finds its own token there,
and the edge nothing but digests, as a config file to be laid over its own. Runs as root without
rights over other users' files: the owner of a token is root, and its holder reads it by group.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from iop_edge.cli.token import Kind, digest_of, new_token

ROOT = Path("/tokens")
HOLDER_GID = 65532
NOBODY_ELSE = 0
SHORTEST = 32

USAGE = """\
Ready to be asked, as soon as the nodes have joined:

  curl http://127.0.0.1:{port}/v1/chat/completions \\
    -H "Authorization: Bearer $(docker compose run --rm -T tokens caller)" \\
    -H 'content-type: application/json' \\
    -d '{{"model": "small", "max_tokens": 64,
         "messages": [{{"role": "user", "content": "Hello"}}]}}'
"""


def main(arguments: list[str]) -> None:
    match arguments:
        case ["make", *nodes] if nodes:
            digests = {node: _digest(ROOT / node, "node", HOLDER_GID) for node in nodes}
            caller = _digest(ROOT / "caller", "caller", NOBODY_ELSE)
            _write(ROOT / "edge" / "tokens.yaml", _config(digests, caller), HOLDER_GID)
            print(USAGE.format(port=os.environ.get("IOP_OPENAI_PORT", "8080")), end="")
        case ["caller"]:
            print(_held(ROOT / "caller" / "token") or sys.exit("no token yet: `docker compose up`"))
        case _:
            sys.exit(f"usage:\n{__doc__}")


def _digest(folder: Path, kind: Kind, gid: int) -> str:
    """The digest of the token in this folder, which is made where there is none yet."""
    file = folder / "token"
    token = _held(file)
    if token is None:
        token = new_token(kind)
        _write(file, token, gid)
    return digest_of(token)


def _held(file: Path) -> str | None:
    """The token in this file. None where there is no file, or none in it: a machine that lost its
    power may leave an empty one, and then a token that every caller has would open the edge."""
    try:
        token = file.read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    is_whole = len(token) >= SHORTEST and token.isprintable() and " " not in token
    return token if is_whole else None


def _write(file: Path, text: str, gid: int) -> None:
    """Replace the file in one step: its holder finds all of it or nothing."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440)
    with open(descriptor, "w", encoding="ascii") as stream:
        os.fchown(descriptor, 0, gid)
        os.fchmod(descriptor, 0o440)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    new.replace(file)


def _config(nodes: dict[str, str], caller: str) -> str:
    lines = ["# Made by tokens.py at every start; digests only.", "nodes:"]
    lines += [f"  - {{ id: {node}, token: {{ sha256: {sha} }} }}" for node, sha in nodes.items()]
    lines += [
        "openai:",
        "  principal_tokens:",
        f'    - {{ token_ref: first, token_hash_sha256: "{caller}", principal_ref: owner }}',
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
