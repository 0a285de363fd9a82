"""Regenerate the stubs from proto/, or with --check say whether they are current.

Messages go to shared/iop. What gRPC's own library needs beside them goes to tests/wire: only tests
play an end of the wire by it.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
MESSAGES = ROOT / "shared" / "iop"
SERVICES = ROOT / "tests" / "wire"


def generate() -> dict[Path, bytes]:
    """What stands where, of every .proto file."""
    scripts = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        protoc_does(
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={folder}",
            f"--mypy_out=quiet,readable_stubs:{folder}",
            f"--grpc_python_out={folder}",
            f"--mypy_grpc_out=quiet,readable_stubs,only_async:{folder}",
            *(str(path.relative_to(PROTO)) for path in sorted(PROTO.glob("iop/*.proto"))),
        )
        made = {path.name: path.read_bytes() for path in (Path(folder) / "iop").iterdir()}
    return {
        (SERVICES if "_grpc." in name else MESSAGES) / name: content
        for name, content in made.items()
        # gRPC's own services are played by its library, which brings what it needs.
        if "_grpc." not in name or name.startswith("runtime")
    }


def protoc_does(*arguments: str) -> None:
    bundled = str(files("grpc_tools") / "_proto")
    status = protoc.main(["protoc", f"-I{PROTO}", f"-I{bundled}", *arguments])
    if status:
        raise SystemExit(f"protoc ended with status {status}")


def main() -> None:
    stubs = generate()
    if "--check" not in sys.argv:
        for path, content in stubs.items():
            path.write_bytes(content)
        return
    stale = [
        str(path.relative_to(ROOT))
        for path, content in stubs.items()
        if not path.exists() or path.read_bytes() != content
    ]
    if stale:
        raise SystemExit(f"not what proto/ generates: {', '.join(stale)} (run `make proto`)")


if __name__ == "__main__":
    main()
