"""Regenerate the stubs in shared/iop from proto/, or with --check say whether they are current."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
STUBS = ROOT / "shared"
NAMES = ("runtime_pb2.py", "runtime_pb2.pyi", "runtime_pb2_grpc.py", "runtime_pb2_grpc.pyi")


def generate(target: Path) -> None:
    """Write the stubs of every .proto file below `target`."""
    bundled = str(files("grpc_tools") / "_proto")
    scripts = Path(sys.executable).parent
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{bundled}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={target}",
            f"--mypy_out=quiet,readable_stubs:{target}",
            f"--grpc_python_out={target}",
            f"--mypy_grpc_out=quiet,readable_stubs,only_async:{target}",
            "iop/runtime.proto",
        ]
    )
    if status:
        raise SystemExit(f"protoc ended with status {status}")


def main() -> None:
    if "--check" not in sys.argv:
        generate(STUBS)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            name
            for name in NAMES
            if not (STUBS / "iop" / name).exists()
            or (STUBS / "iop" / name).read_bytes() != (Path(folder) / "iop" / name).read_bytes()
        ]
    if stale:
        raise SystemExit(f"not what proto/ generates: {', '.join(stale)} (run `make proto`)")


if __name__ == "__main__":
    main()
