"""The parts of the join script, in this process; the whole of it runs in the end-to-end test."""

from __future__ import annotations

import ast
import errno
import hashlib
import io
import json
import os
import platform
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from iop_edge.serve.bootstrap import join_script
from iop_edge.serve.bootstrap.join_script import Refused

from .conftest import manifest

TOKEN = "iop_node_0123abcd_" + "s" * 40
OTHER = "iop_node_0123abcd_" + "o" * 40

SOURCE = Path(join_script.__file__).read_text()


def typed(text: str) -> io.TextIOWrapper:
    """A standard input on which this stands, and then no more."""
    return io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogateescape")), "utf-8")


@pytest.fixture(autouse=True)
def no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IOP_NODE_TOKEN", raising=False)


@pytest.mark.req("NODE-2")
def test_it_needs_nothing_but_the_standard_library() -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert imported <= sys.stdlib_module_names


@pytest.mark.req("NODE-2")
def test_an_old_python_can_compile_it_and_is_told_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ast.parse(SOURCE, feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert join_script.main([]) == 1
    assert "Python 3.11 or newer is needed; this is 3.9" in capsys.readouterr().err


# --- the token ---------------------------------------------------------------------------------


@pytest.mark.req("NODE-1", "SEC-1")
@pytest.mark.parametrize("source", ["file", "environment", "kept", "input"])
def test_the_token_comes_from_the_nearest_place_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    order = ("file", "environment", "kept", "input")
    has = {name: order.index(name) >= order.index(source) for name in order}
    file, kept = tmp_path / "file", tmp_path / "kept"
    file.write_text(f"{TOKEN if source == 'file' else OTHER}\n")
    if has["environment"]:
        monkeypatch.setenv("IOP_NODE_TOKEN", TOKEN if source == "environment" else OTHER)
    if has["kept"]:
        kept.write_text((TOKEN if source == "kept" else OTHER) + "\n")
    monkeypatch.setattr("sys.stdin", typed(f"{TOKEN if source == 'input' else OTHER}\n"))
    assert join_script.token_of(file if has["file"] else None, kept) == TOKEN


@pytest.mark.req("NODE-2")
def test_a_placeholder_left_in_the_line_is_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOP_NODE_TOKEN", "<token of a-node-with-a-very-long-name>")
    monkeypatch.setattr("sys.stdin", typed(TOKEN + "\n"))
    assert join_script.token_of(None, tmp_path / "kept") == TOKEN


@pytest.mark.req("SEC-1")
def test_on_a_terminal_it_is_asked_for_without_an_echo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("not read from here"))
    monkeypatch.setattr("getpass.getpass", lambda prompt: f" {TOKEN} ")
    assert join_script.token_of(None, tmp_path / "kept") == TOKEN


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("wrong", ["", "short", "ä" * 40, "s" * 40 + "\x07s", "\udcff" * 40])
def test_what_is_no_token_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr("sys.stdin", typed(wrong + "\n"))
    with pytest.raises(Refused, match="32 or more") as caught:
        join_script.token_of(None, tmp_path / "kept")
    assert not wrong or wrong not in str(caught.value)


@pytest.mark.req("NODE-2", "SEC-1")
def test_an_input_that_has_ended_is_told_with_where_else_a_token_may_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", typed(""))
    with pytest.raises(Refused, match="--token-file or IOP_NODE_TOKEN"):
        join_script.token_of(None, tmp_path / "kept")


@pytest.mark.req("NODE-2")
def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="absent"):
        join_script.token_of(tmp_path / "absent", tmp_path / "kept")


@pytest.mark.req("SEC-1")
def test_what_is_kept_is_private_whatever_the_mask_and_whatever_was_there(tmp_path: Path) -> None:
    kept = tmp_path / "token"
    mask = os.umask(0)
    try:
        assert join_script.keep(kept, TOKEN, 0o600)
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert not join_script.keep(kept, TOKEN, 0o600)
        kept.chmod(0o644)
        assert join_script.keep(kept, TOKEN, 0o600)
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    finally:
        os.umask(mask)
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


# --- what fails on the way ---------------------------------------------------------------------


OFFER = json.dumps(manifest()).encode()


@contextmanager
def bootstrap(answer: bytes) -> Iterator[str]:
    """A listener that says this to everyone and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nha",
    ],
    ids=["nothing", "another protocol", "half a body", "half a chunk"],
)
def test_a_connection_that_fails_is_told_in_one_line(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with bootstrap(answer) as url:
        arguments = ["--edge", "e:1", "--from", url, "--manifest", "0" * 64]
        assert join_script.main(arguments) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"join: {url}manifest.json cannot be fetched: ")


@pytest.mark.req("NODE-2")
@pytest.mark.parametrize("home", ["/proc/none", "/dev/null/none"])
def test_a_folder_that_cannot_be_written_to_is_told_with_how_to_name_another(
    home: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_script, "wheels_for_this_machine", lambda manifest: [])
    body = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(OFFER), OFFER)
    with bootstrap(body) as url:
        digest = hashlib.sha256(OFFER).hexdigest()
        arguments = ["--edge", "e:1", "--from", url, "--manifest", digest, "--foreground"]
        assert join_script.main([*arguments, "--home", home]) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"join: {home} cannot be written to (")
    assert "--home FOLDER" in said


@pytest.mark.req("NODE-2")
def test_a_user_without_a_home_is_told_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(Refused, match="--home FOLDER"):
        join_script._xdg("XDG_DATA_HOME", ".local/share")


@pytest.mark.req("NODE-2")
def test_a_machine_that_fails_in_some_other_way_is_told_which_file_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def join(options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/disk")

    monkeypatch.setattr(join_script, "join", join)
    assert join_script.main(["--edge", "e", "--from", "f", "--manifest", "m"]) == 1
    assert capsys.readouterr().err.startswith("join: /full/disk: No space left on device; ")


# --- the machine -------------------------------------------------------------------------------


def _offered(*targets: tuple[str, str], **changes: Any) -> dict[str, Any]:
    return manifest(
        targets=[{"python": python, "platform": machine} for python, machine in targets], **changes
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))


@pytest.mark.req("NODE-2")
@pytest.mark.usefixtures("machine")
def test_a_machine_takes_its_own_wheels_and_those_for_all() -> None:
    names = [("3.12", "aarch64"), ("3.12", "x86_64"), ("3.11", "aarch64")]
    names += [("any", "aarch64"), ("any", "x86_64"), ("any", "any")]
    files = [{"file": f"{a}-{b}", "python": a, "platform": b} for a, b in names]
    taken = join_script.wheels_for_this_machine(_offered(("3.12", "aarch64"), files=files))
    assert [wheel["file"] for wheel in taken] == ["3.12-aarch64", "any-aarch64", "any-any"]


@pytest.mark.req("NODE-2")
@pytest.mark.usefixtures("machine")
def test_a_machine_that_nothing_is_offered_for_is_told_what_is_offered() -> None:
    with pytest.raises(Refused, match=r"Python 3\.12 on aarch64; it offers 3\.11 on x86_64"):
        join_script.wheels_for_this_machine(_offered(("3.11", "x86_64")))


@pytest.mark.req("NODE-2")
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("libc", [("glibc", "2.5"), ("", "")])
def test_another_c_library_is_told(monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str]) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    with pytest.raises(Refused, match="glibc"):
        join_script.wheels_for_this_machine(_offered(("3.12", "aarch64")))


@pytest.mark.req("NODE-2")
def test_a_python_without_venv_is_told_which_package_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    edge = join_script.Edge("http://127.0.0.1:1", None)
    with pytest.raises(Refused, match=r"apt-get install -y python3\.\d+-venv"):
        join_script.install(edge, [], tmp_path / "venv")
    assert not list(tmp_path.iterdir())


# --- names and services ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "name"),
    [("gpu-a", "iop-node-gpu-a"), ("", "iop-node"), ("a/../b", "iop-node-a-..-b-83f4e4d4")],
)
def test_a_name_is_good_for_files_and_units(node_id: str, name: str) -> None:
    made = join_script.name_of(node_id)
    assert "/" not in made
    assert made.partition("-b-")[0] == name.partition("-b-")[0]


def test_ids_that_read_the_same_as_a_name_stay_apart() -> None:
    assert join_script.name_of("a b") != join_script.name_of("a/b") != join_script.name_of("a-b")


@pytest.mark.req("NODE-2", "SEC-1")
@pytest.mark.parametrize("is_system", [True, False])
def test_a_service_reads_the_token_from_its_file_and_stops_where_trying_again_is_no_use(
    is_system: bool,
) -> None:
    folder = Path("/home/100% mine/config")
    files = {"IOP_NODE_TOKEN_FILE": folder / "token"}
    unit = join_script.unit_of("iop-node-a", Path("/v/bin/iop-node"), folder, files, is_system)
    assert "RestartPreventExitStatus=2 6\n" in unit
    assert "EnvironmentFile=/home/100%% mine/config/node.env\n" in unit
    if is_system:
        assert "DynamicUser=yes\n" in unit
        assert "LoadCredential=IOP_NODE_TOKEN_FILE:/home/100%% mine/config/token\n" in unit
    else:
        assert 'Environment="IOP_NODE_TOKEN_FILE=/home/100%% mine/config/token"\n' in unit


@pytest.fixture
def systemctl_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service manager that is up and notes what it is asked."""
    calls = tmp_path / "calls"
    calls.touch()
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
case "$*" in
  --version) echo "systemd ${{FAKE_VERSION:-252}} (fake)" ;;
  *is-system-running) echo "${{FAKE_STATE:-running}}" ;;
  *) echo "$*" >> {calls} ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return calls


@pytest.mark.req("NODE-2")
@pytest.mark.usefixtures("systemctl_calls")
@pytest.mark.parametrize(
    ("user", "version", "state", "is_there"),
    [
        (0, "252", "running", True),
        (1000, "252", "degraded", True),
        (0, "249", "running", False),
        (0, "252", "offline", False),
        (1000, "252", "", False),
    ],
)
def test_a_service_manager_is_used_where_one_is_up_and_new_enough(
    monkeypatch: pytest.MonkeyPatch, user: int, version: str, state: str, is_there: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("FAKE_VERSION", version)
    monkeypatch.setenv("FAKE_STATE", state or " ")
    whole = ["systemctl"] if user == 0 else ["systemctl", "--user"]
    assert join_script.systemctl_of(False) == (whole if is_there else None)
    assert join_script.systemctl_of(True) is None


@pytest.mark.req("NODE-2")
def test_a_service_is_restarted_only_where_something_has_changed(
    tmp_path: Path, systemctl_calls: Path
) -> None:
    def start(unit: str, *, has_changed: bool) -> list[str]:
        systemctl_calls.write_text("")
        join_script.start_service(["systemctl", "--user"], "iop-node-a", unit, has_changed)
        return systemctl_calls.read_text().splitlines()

    anew = [
        "--user daemon-reload",
        "--user enable --quiet iop-node-a",
        "--user restart iop-node-a",
    ]
    assert start("one", has_changed=False) == anew
    assert (tmp_path / "config/systemd/user/iop-node-a.service").read_text() == "one"
    assert start("one", has_changed=False) == [anew[1], "--user start iop-node-a"]
    assert start("one", has_changed=True) == anew
    assert start("two", has_changed=False) == anew
