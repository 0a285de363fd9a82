"""Fetches the peers, each into a folder of its own under `.bench/`, once.

A folder says what was put into it; another version here makes it anew. What cannot be had raises
`Absent` with the reason, and the bench goes on without it. Ordinary clients only: pip, npm, apt.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.speed.running import Absent
from demo.processes import ROOT

CACHE = ROOT / ".bench"
LITELLM = "litellm[proxy]==1.108.7"
VLLM_ROUTER = "vllm-router==0.1.17"
PY_SPY = "py-spy==0.4.3"
PORTKEY = {
    "dependencies": {"@portkey-ai/gateway": "1.15.2"},
    # It streams nothing on any later one: it changes headers that those keep immutable.
    "overrides": {"@hono/node-server": "1.13.8"},
}
_WITHIN_S = 900.0


def litellm() -> Path:
    """The command `litellm`."""
    return _from_pypi("litellm", LITELLM)


def vllm_router() -> Path:
    """The command `vllm-router`."""
    return _from_pypi("vllm-router", VLLM_ROUTER)


def py_spy() -> Path:
    """The command `py-spy`, which is no peer: it looks where time goes."""
    return _from_pypi("py-spy", PY_SPY)


def portkey() -> Path:
    """The script that node runs."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise Absent(f"there is no {command} here")

    def fill(folder: Path) -> None:
        (folder / "package.json").write_text(json.dumps(PORTKEY))
        _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], folder)

    folder = _once("portkey", json.dumps(PORTKEY), fill)
    return folder / "node_modules/@portkey-ai/gateway/build/start-server.js"


def nginx() -> Path:
    """The command `nginx`: the one that is here, or Debian's, unpacked and not installed."""
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is not None:
        return Path(found)
    if shutil.which("apt-get") is None:
        raise Absent("there is no nginx here, and no apt-get to fetch it")

    def fill(folder: Path) -> None:
        try:
            _run(["apt-get", "download", "-qq", "nginx"], folder)
        except Absent:  # an image that has never read Debian's lists
            _run(["apt-get", "update", "-qq"], folder)
            _run(["apt-get", "download", "-qq", "nginx"], folder)
        [package] = folder.glob("nginx_*.deb")
        _run(["dpkg-deb", "--extract", package, "unpacked"], folder)

    return _once("nginx", "Debian's", fill) / "unpacked/usr/sbin/nginx"


def _from_pypi(name: str, requirement: str) -> Path:
    def fill(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "."], folder)
        pip: list[str | Path] = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", requirement], folder)

    return _once(name, requirement, fill) / "bin" / name


def _once(name: str, content: str, fill: Callable[[Path], None]) -> Path:
    folder = CACHE / name
    stamp = folder / "filled-with"
    if not (stamp.exists() and stamp.read_text() == content):
        print(f"{name}: fetching it, once", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fill(folder)
        stamp.write_text(content)
    return folder


def _run(command: Sequence[str | Path], folder: Path) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=_environment(os.environ),
            check=True,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
        )
    except subprocess.CalledProcessError as failed:
        last = (failed.stderr or failed.stdout).strip().splitlines()[-1:]
        raise Absent(f"`{Path(command[0]).name}` failed: {' '.join(last)}") from None
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise Absent(str(failed)) from None


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Whatever the clients are set up with, but nothing that would leave a peer without bytecode:
    it would be slower than it is."""
    return {key: value for key, value in ours.items() if key != "PYTHONDONTWRITEBYTECODE"}
