"""Fill a folder with everything a joining machine installs: `artifacts.py DIR`.

The iop wheel of this checkout, and the wheels of what a node needs at run time, for each Python
and architecture, as requirements/runtime.txt locks them with hashes. Needs pip and a package
index. The manifest is written last and in one step, and what it does not name is removed after
that, so an edge may go on serving the folder meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "runtime.txt"

NODE_NEEDS = (
    "click",
    "h2",
    "httptools",
    "msgspec",
    "prometheus-client",
    "protobuf",
    "structlog",
    "uvloop",
)
"""What iop_node and iop_shared import. The rest of the lock is the edge's own."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64", "aarch64")
GLIBC = (2, 17)


Manifest = dict[str, Any]
"""As iop_edge.serve.bootstrap.artifacts reads it."""


class Wheel(NamedTuple):
    name: str
    version: str
    python: str
    platform: str


def locked() -> dict[str, str]:
    """The lock's entries by name, each with its hashes."""
    entries = re.split(r"^(?=[A-Za-z0-9])", LOCK.read_text(), flags=re.MULTILINE)
    return {normalized(entry.partition("==")[0]): entry for entry in entries if "==" in entry}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: tuple[str, ...]) -> list[str]:
    """The names with everything they depend on, as far as the lock has it.

    Read from what is installed here, which is what the lock says. A dependency that the lock does
    not have is one of an older Python.
    """
    known, found, waiting = locked(), set[str](), list(names)
    while waiting:
        name = normalized(waiting.pop())
        if name in found or name not in known:
            continue
        found.add(name)
        needs = [need for need in requires(name) or () if "extra ==" not in need]
        waiting += [re.split(r"[^\w.-]", need)[0] for need in needs]
    return sorted(found)


def fetch(folder: Path, entries: str, python: str, platform: str) -> None:
    """Download one target's wheels, checked against the lock's hashes."""
    newest, oldest = GLIBC[1], 5
    tags = [f"manylinux_{GLIBC[0]}_{minor}_{platform}" for minor in range(newest, oldest - 1, -1)]
    tags += [f"{alias}_{platform}" for alias in ("manylinux2014", "manylinux2010", "manylinux1")]
    pins = folder / "requirements.txt"
    pins.write_text(entries)
    _pip(
        *("download", "--dest", str(folder), "--no-deps", "--require-hashes"),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python),
        *(word for tag in tags for word in ("--platform", tag)),
        *("-r", str(pins)),
    )
    pins.unlink()


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def facts_of(file: Path) -> Wheel:
    """What a wheel's name says. `any` where it fits every Python or every architecture."""
    parts = file.stem.split("-")
    interpreter, abi, tags = parts[-3:]
    python = "any"
    if abi not in ("none", "abi3"):
        number = interpreter.removeprefix("cp")
        python = f"{number[0]}.{number[1:]}"
    platform = next((one for one in PLATFORMS if tags.endswith(one)), "any")
    return Wheel(normalized(parts[0]), parts[1], python, platform)


def manifest_of(folder: Path, pythons: list[str], platforms: list[str]) -> Manifest:
    files = []
    for file in sorted(folder.glob("*.whl")):
        facts = facts_of(file)
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        files.append({"file": file.name, "sha256": digest, "size": len(content), **facts._asdict()})
    targets = [{"python": one, "platform": other} for one in pythons for other in platforms]
    return {
        "iop": version("iop"),
        "glibc": ".".join(map(str, GLIBC)),
        "targets": targets,
        "files": files,
    }


def check_complete(manifest: Manifest, needed: list[str]) -> None:
    """Ends with an error where a target lacks a wheel, or has two of a kind."""
    for target in manifest["targets"]:
        python, platform = target["python"], target["platform"]
        names = [
            wheel["name"]
            for wheel in manifest["files"]
            if wheel["python"] in (python, "any") and wheel["platform"] in (platform, "any")
        ]
        for name in (*needed, "iop"):
            if names.count(name) != 1:
                found = names.count(name)
                raise SystemExit(f"{found} wheels of {name} for Python {python} on {platform}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the artifacts that joining nodes install.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="+", default=list(PYTHONS), metavar="X.Y")
    parser.add_argument("--platform", nargs="+", default=list(PLATFORMS), choices=PLATFORMS)
    options = parser.parse_args()
    target: Path = options.folder.absolute()
    target.mkdir(parents=True, exist_ok=True)
    known, needed = locked(), closure(NODE_NEEDS)
    entries = "".join(known[name] for name in needed)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        folder = Path(scratch)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, str(ROOT))
        for python in options.python:
            for platform in options.platform:
                print(f"artifacts: Python {python} on {platform}", file=sys.stderr, flush=True)
                fetch(folder, entries, python, platform)
        manifest = manifest_of(folder, options.python, options.platform)
        check_complete(manifest, needed)
        for file in folder.glob("*.whl"):
            file.replace(target / file.name)
        staged = folder / "manifest.json"
        staged.write_text(json.dumps(manifest, indent=1) + "\n")
        staged.replace(target / "manifest.json")
    named = {wheel["file"] for wheel in manifest["files"]}
    for file in target.glob("*.whl"):
        if file.name not in named:
            file.unlink()
    print(f"artifacts: {len(named)} wheels in {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
