"""The parts of scripts/artifacts.py that need no package index."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def artifacts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("artifacts", ROOT / "scripts" / "artifacts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(*folders: str) -> set[str]:
    """Every module outside the standard library and this project that the sources import."""
    found = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module or "")
    tops = {name.partition(".")[0] for name in found}
    return tops - sys.stdlib_module_names - {"iop", "iop_node", "iop_shared"}


@pytest.mark.req("NODE-2")
def test_what_a_node_imports_is_among_the_artifacts(artifacts: ModuleType) -> None:
    offered = set(artifacts.closure(artifacts.NODE_NEEDS))
    extras = {
        artifacts.normalized(re.split(r"[^\w.-]", needed)[0])
        for needed in requires("iop") or ()
        if "extra ==" in needed
    }
    owners = packages_distributions()
    for module in _imported("node/iop_node", "shared/iop_shared", "shared/iop"):
        # A namespace belongs to several; the one that is needed is listed by hand. What an extra
        # brings is asked for where it is used, and may be missing.
        owned = {artifacts.normalized(one) for one in owners[module]}
        assert not owned.isdisjoint(offered | extras), module


@pytest.mark.req("NODE-2")
def test_nothing_is_asked_for_that_no_node_imports(artifacts: ModuleType) -> None:
    owners = packages_distributions()
    used = {
        artifacts.normalized(one)
        for module in _imported("node/iop_node", "shared/iop_shared", "shared/iop")
        for one in owners[module]
    }
    assert used >= set(artifacts.NODE_NEEDS)


@pytest.mark.req("NODE-2")
def test_what_only_the_edge_needs_is_not_among_them(artifacts: ModuleType) -> None:
    offered = set(artifacts.closure(artifacts.NODE_NEEDS))
    assert offered.isdisjoint({"jsonschema-rs", "rich", "pyyaml"})


@pytest.mark.req("NODE-2")
def test_every_artifact_is_locked_with_hashes(artifacts: ModuleType) -> None:
    locked = artifacts.locked()
    for name in artifacts.closure(artifacts.NODE_NEEDS):
        assert "--hash=sha256:" in locked[name]


@pytest.mark.parametrize(
    ("file", "facts"),
    [
        ("idna-3.20-py3-none-any.whl", ("idna", "3.20", "any", "any")),
        (
            "typing_extensions-4.16.0-py3-none-any.whl",
            ("typing-extensions", "4.16.0", "any", "any"),
        ),
        (
            "protobuf-7.36.2-cp310-abi3-manylinux2014_x86_64.whl",
            ("protobuf", "7.36.2", "any", "x86_64"),
        ),
        (
            "grpcio-1.85.3-cp314-cp314-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
            ("grpcio", "1.85.3", "3.14", "aarch64"),
        ),
    ],
)
def test_a_wheels_name_tells_whom_it_is_for(
    artifacts: ModuleType, file: str, facts: tuple[str, ...]
) -> None:
    assert artifacts.facts_of(Path(file)) == facts


@pytest.mark.req("NODE-2")
def test_a_target_that_lacks_a_wheel_is_an_error(artifacts: ModuleType, tmp_path: Path) -> None:
    for name in ("iop-0.1.0-py3-none-any.whl", "grpcio-1-cp311-cp311-manylinux2014_x86_64.whl"):
        (tmp_path / name).write_bytes(b"wheel")
    manifest = artifacts.manifest_of(tmp_path, ["3.11"], ["x86_64"])
    artifacts.check_complete(manifest, ["grpcio"])
    assert json.loads(json.dumps(manifest)) == manifest
    with pytest.raises(SystemExit, match=r"yarl.*Python 3\.11 on x86_64"):
        artifacts.check_complete(manifest, ["grpcio", "yarl"])
    with pytest.raises(SystemExit, match=r"grpcio.*Python 3\.12 on x86_64"):
        twelve = artifacts.manifest_of(tmp_path, ["3.11", "3.12"], ["x86_64"])
        artifacts.check_complete(twelve, ["grpcio"])
