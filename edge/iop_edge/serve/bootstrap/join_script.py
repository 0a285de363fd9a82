"""Makes the machine that it runs on a node of an IOP edge.

The edge serves this file as it is, and the line that `iop-edge node join` prints fetches it, checks
its digest and runs it. It stands alone (the standard library, one file), since nothing of IOP is
there yet. It holds nothing of a particular edge or node: that comes as arguments. What it downloads
is pinned twice, by the manifest's digest in the line and by each wheel's in the manifest.

  look      Python, C library and architecture, against what the edge offers
  token     from a file, from IOP_NODE_TOKEN, from an earlier run, or asked for; kept with mode 0600
  install   a virtual environment, from the edge's wheels alone; done already is not done again
  start     as a service of systemd where that runs, else here, in the foreground

It must compile on every Python from 3.8 on, so that an old one is told what is missing.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import getpass
import hashlib
import http.client
import importlib.util
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIN_PYTHON = (3, 11)
MIN_TOKEN_CHARACTERS = 32
MIN_SYSTEMD = 250  # the first with credentials and a specifier for where they are
TIMEOUT_S = 60
MAX_MANIFEST_BYTES = 1048576
CHUNK_BYTES = 262144
EXIT_REFUSED = 1

ELSEWHERE = "; `--home FOLDER` at the end of the line names another folder"

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Refused(Exception):
    """The machine cannot become a node this way; the message says what would be right."""


def say(text: str) -> None:
    print("join: " + text, file=sys.stderr, flush=True)


# --- what the edge offers ----------------------------------------------------------------------


class Edge:
    """The edge's bootstrap listener. Dialled directly, as the node dials the edge itself."""

    def __init__(self, url: str, authority: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/") + "/"
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=authority)
        )

    def read(self, path: str, limit: int) -> bytes:
        with self._answer(path) as answer:
            content: bytes = answer.read(limit + 1)
            is_cut = bool(answer.length) and len(content) <= limit
        if is_cut:
            raise Refused(f"{self._url}{path} cannot be fetched: it ended too early")
        if len(content) > limit:
            raise Refused(f"{self._url}{path} is larger than {limit} bytes")
        return content

    def save(self, artifact: dict[str, Any], folder: Path) -> None:
        """Download one wheel. Refused where it is not, byte for byte, the one in the manifest."""
        name, digest, size = artifact["file"], hashlib.sha256(), 0
        with (folder / name).open("wb") as target:
            for chunk in self._chunks("artifacts/" + name):
                size += len(chunk)
                if size > artifact["size"]:
                    break
                digest.update(chunk)
                target.write(chunk)
        if (size, digest.hexdigest()) != (artifact["size"], artifact["sha256"]):
            raise Refused(
                f"{name} is not the file that the manifest names (its size or sha256 differs); "
                "nothing of it was installed"
            )

    def _chunks(self, path: str) -> Iterator[bytes]:
        with self._answer(path) as answer:
            while chunk := answer.read(CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _answer(self, path: str) -> Iterator[Any]:
        """An answer to be read within the block. What fails there is the connection's fault."""
        try:
            with self._opener.open(self._url + path, timeout=TIMEOUT_S) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            detail = error.read(500).decode("utf-8", "replace")
            raise Refused(f"{self._url}{path}: HTTP {error.code}: {_plain(detail)}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise Refused(f"{self._url}{path} cannot be fetched: {_plain(str(why))}") from None


def _plain(text: str) -> str:
    """What a stranger said, in one line that does nothing to a terminal."""
    return "".join(one if one.isprintable() else " " for one in text).strip()


def manifest_of(edge: Edge, digest: str) -> dict[str, Any]:
    content = edge.read("manifest.json", MAX_MANIFEST_BYTES)
    if hashlib.sha256(content).hexdigest() != digest:
        raise Refused(
            "the edge offers other artifacts than this line was made for; ask for a new line with "
            "`iop-edge node join`"
        )
    manifest: dict[str, Any] = json.loads(content)
    return manifest


def wheels_for_this_machine(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    python = _dotted(sys.version_info[:2])
    machine = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    libc, libc_version = platform.libc_ver()
    if sys.platform != "linux" or libc != "glibc":
        raise Refused(
            f"the edge's artifacts are for Linux with glibc; this is {sys.platform} with "
            f"{libc or 'another C library'}"
        )
    if _numbers(libc_version) < _numbers(manifest["glibc"]):
        raise Refused(
            f"the edge's artifacts need glibc {manifest['glibc']}; this machine has {libc_version}"
        )
    offered = [f"{target['python']} on {target['platform']}" for target in manifest["targets"]]
    if f"{python} on {machine}" not in offered:
        raise Refused(
            f"the edge offers nothing for Python {python} on {machine}; it offers "
            f"{', '.join(offered)}. Another Python of this machine may run the line: write its "
            "name in place of python3"
        )
    return [
        wheel
        for wheel in manifest["files"]
        if wheel["python"] in (python, "any") and wheel["platform"] in (machine, "any")
    ]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", version)]


# --- the token ---------------------------------------------------------------------------------


def token_of(token_file: Path | None, kept: Path) -> str:
    """The node's token. Never an argument: those are shown to every user of the machine."""
    given = os.environ.get("IOP_NODE_TOKEN", "").strip()
    if token_file is not None:
        try:
            token = token_file.read_text("utf-8", "replace").strip()
        except OSError as error:
            raise Refused(
                f"the token file {token_file} cannot be read ({error.strerror})"
            ) from None
    elif given and not (given.startswith("<") and given.endswith(">")):
        token = given
    elif kept.exists():
        token = kept.read_text("utf-8", "replace").strip()
    elif sys.stdin.isatty():
        try:
            token = getpass.getpass("join: token of this node (it is not shown): ").strip()
        except EOFError:
            raise Refused("no token was given") from None
    else:
        say("the token of this node is read from standard input")
        typed = sys.stdin.buffer.readline().decode("utf-8", "replace")
        if not typed:
            raise Refused(
                "there is no token on standard input: it is at its end. A shell that reads the "
                "line itself from there may have read on, and taken the token for a command: run "
                "the line with `sh -c`, or give the token by --token-file or IOP_NODE_TOKEN"
            )
        token = typed.strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not (token.isascii() and token.isprintable()):
        raise Refused(
            f"this is no token: one has {MIN_TOKEN_CHARACTERS} or more printable ASCII characters, "
            f"this has {len(token)}"
        )
    return token


def keep(path: Path, content: str, mode: int) -> bool:
    """Write a file in one step, its mode from the first moment. False where it is so already."""
    if path.exists() and path.read_text() == content and path.stat().st_mode & 0o777 == mode:
        return False
    new = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, mode), "w") as file:
        file.write(content)
    new.replace(path)
    return True


# --- installing --------------------------------------------------------------------------------


def install(edge: Edge, wheels: list[dict[str, Any]], environment: Path) -> bool:
    """A virtual environment with exactly these wheels. False where it is there already."""
    finished = environment / ".complete"
    if finished.exists():
        return False
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise Refused(
            "this Python cannot make virtual environments; on Debian or Ubuntu: "
            f"apt-get install -y python{_dotted(sys.version_info[:2])}-venv"
        )
    shutil.rmtree(environment, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=environment.parent) as scratch:
        folder = Path(scratch)
        say(f"fetching {len(wheels)} wheels")
        for wheel in wheels:
            edge.save(wheel, folder)
        pins = folder / "requirements.txt"
        pins.write_text(
            "".join(f"{w['name']}=={w['version']} --hash=sha256:{w['sha256']}\n" for w in wheels)
        )
        say(f"installing them in {environment}")
        _run([sys.executable, "-I", "-m", "venv", str(environment)], scratch)
        pip = [
            str(environment / "bin" / "python"),
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
        ]
        only_these = ["--no-index", "--find-links", scratch, "--no-deps", "--require-hashes"]
        _run([*pip, "install", "--quiet", "--no-cache-dir", *only_these, "-r", str(pins)], scratch)
    finished.touch()
    return True


def _run(command: list[str], scratch: str | None = None) -> None:
    """A step that must succeed, free of this machine's settings for Python and pip. What it needs
    for a moment goes to `scratch`, since a machine may have no other folder to write to."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    kept.pop("IOP_NODE_TOKEN", None)
    if scratch is not None:
        kept["TMPDIR"] = scratch
    ran = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**kept, "PIP_CONFIG_FILE": os.devnull},
        check=False,
    )
    if ran.returncode:
        end = ran.stdout.decode("utf-8", "replace").strip().splitlines()[-8:]
        raise Refused("\n".join(["this failed: " + " ".join(command), *end]))


# --- starting ----------------------------------------------------------------------------------


def systemctl_of(wants_foreground: bool) -> list[str] | None:
    """How a service manager is reached that can run the node, or None."""
    if wants_foreground or shutil.which("systemctl") is None:
        return None
    command = ["systemctl"] if os.geteuid() == 0 else ["systemctl", "--user"]
    state = subprocess.run(
        [*command, "is-system-running"], capture_output=True, text=True, check=False
    ).stdout.strip()
    version = subprocess.run(
        ["systemctl", "--version"], capture_output=True, text=True, check=False
    )
    number = (_numbers(version.stdout) or [0])[0]
    is_up = state in ("running", "degraded", "starting")
    return command if is_up and number >= MIN_SYSTEMD else None


def unit_of(name: str, program: Path, folder: Path, files: dict[str, Path], is_system: bool) -> str:
    """A unit that runs the node; as a user of its own where it is one of the whole system.

    `files` are those that only the node may read: variable to path.
    """
    lines = [
        "[Unit]",
        f"Description=IOP node ({name})",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"ExecStart={_escaped(program)} run",
        f"EnvironmentFile={_escaped(folder / 'node.env')}",
        "# Variables and keys that the edge's config expects on this node (node_env).",
        f"EnvironmentFile=-{_escaped(folder / 'extra.env')}",
    ]
    if is_system:
        lines.append("DynamicUser=yes")
    for variable, path in files.items():
        if is_system:
            lines.append(f"LoadCredential={variable}:{_escaped(path)}")
            lines.append(f"Environment={variable}=%d/{variable}")
        else:
            lines.append(f'Environment="{variable}={_escaped(path)}"')
    lines += [
        "Restart=always",
        "RestartSec=2",
        "# A variable is missing, or the edge does not know the token: no use in trying again.",
        "RestartPreventExitStatus=2 6",
        "# Runs in progress end first; the edge says how long they may take.",
        "TimeoutStopSec=15min",
        "",
        "[Install]",
        "WantedBy=%s" % ("multi-user.target" if is_system else "default.target"),
    ]
    return "\n".join(lines) + "\n"


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")


def start_service(systemctl: list[str], name: str, unit: str, has_changed: bool) -> None:
    is_system = len(systemctl) == 1
    units = Path("/etc/systemd/system") if is_system else _xdg("XDG_CONFIG_HOME", ".config")
    units = units if is_system else units / "systemd" / "user"
    units.mkdir(parents=True, exist_ok=True)
    has_changed = keep(units / (name + ".service"), unit, 0o644) or has_changed
    if has_changed:
        _run([*systemctl, "daemon-reload"])
    _run([*systemctl, "enable", "--quiet", name])
    _run([*systemctl, "restart" if has_changed else "start", name])
    user = "" if is_system else " --user"
    say(f"it runs as the service {name}; its log: journalctl{user} -u {name} -f")
    if not is_system:
        say("to let it run while you are logged out: loginctl enable-linger")


def is_connected(program: Path, environment: dict[str, str]) -> bool:
    """A node of this machine with this token is there already."""
    asked = subprocess.run(
        [str(program), "health"], env=environment, capture_output=True, check=False
    )
    return asked.returncode == 0


# --- all of it ---------------------------------------------------------------------------------


def _xdg(variable: str, otherwise: str) -> Path:
    named = os.environ.get(variable)
    if named:
        return Path(named)
    try:
        return Path.home() / otherwise
    except RuntimeError:
        raise Refused("this user has no home folder: `--home FOLDER` names one") from None


def name_of(node_id: str) -> str:
    """A name for files and services; ids that hold more than it may are told apart by a digest."""
    plain = re.sub("[^A-Za-z0-9._-]+", "-", node_id)
    digest = "" if plain == node_id else "-" + hashlib.sha256(node_id.encode()).hexdigest()[:8]
    return "iop-node" + ("-" + plain + digest if node_id else "")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="join", description="Make this machine a node of IOP.")
    add = parser.add_argument
    add("--edge", required=True, help="host:port that the node dials")
    add("--from", dest="url", required=True, help="the edge's bootstrap listener")
    add("--manifest", required=True, help="sha256 of the manifest of the artifacts")
    add("--node", default="", help="the node's id: names the folder and the service")
    add("--ca", default="", help="the edge's own certificate authority, DER in base64")
    add("--insecure", action="store_true", help="the edge speaks plaintext to its nodes")
    add("--token-file", type=Path, help="a file of this machine that holds the token")
    add("--cert-file", type=Path, help="this node's certificate, where the edge asks for one")
    add("--key-file", type=Path, help="the key of that certificate")
    add("--home", type=Path, help="where everything is kept")
    add("--foreground", action="store_true", help="use no service manager")
    return parser.parse_args(arguments)


def join(options: argparse.Namespace) -> None:
    """Returns when the node runs elsewhere; becomes the node where it runs in the foreground."""
    authority = None
    if options.ca:
        authority = ssl.create_default_context(cadata=base64.b64decode(options.ca))
    edge = Edge(options.url, authority)
    manifest = manifest_of(edge, options.manifest)
    wheels = wheels_for_this_machine(manifest)

    systemctl = systemctl_of(options.foreground)
    is_system = systemctl == ["systemctl"]
    name = name_of(options.node)
    shared = Path("/var/lib") if is_system else _xdg("XDG_DATA_HOME", ".local/share")
    home = (options.home or shared / "iop" / name).absolute()
    config = home / "config"
    try:
        config.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"{home} cannot be written to ({error.strerror}){ELSEWHERE}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"another join is under way in {home}") from None

    has_changed = keep(
        config / "token", token_of(options.token_file, config / "token") + "\n", 0o600
    )
    variables = {"IOP_EDGE": options.edge}
    if authority is not None and not options.insecure:
        roots = authority.get_ca_certs(binary_form=True)
        has_changed |= keep(config / "ca.pem", "".join(map(ssl.DER_cert_to_PEM_cert, roots)), 0o644)
        variables["IOP_EDGE_CA_FILE"] = str(config / "ca.pem")
    if options.insecure:
        variables["IOP_EDGE_INSECURE"] = "1"
    files = {"IOP_NODE_TOKEN_FILE": config / "token"}
    for variable, path in (
        ("IOP_NODE_CERT_FILE", options.cert_file),
        ("IOP_NODE_KEY_FILE", options.key_file),
    ):
        if path is not None:
            if not path.is_file():
                raise Refused(f"{path} is not there: the edge asks this node for a certificate")
            files[variable] = path.absolute()
    settings = "".join(f'{key}="{value}"\n' for key, value in variables.items())
    has_changed |= keep(config / "node.env", settings, 0o644)

    environment = home / ("venv-" + options.manifest[:12])
    has_changed |= install(edge, wheels, environment)
    program = environment / "bin" / "iop-node"

    if systemctl is not None:
        unit = unit_of(name, program, config, files, is_system)
        start_service(systemctl, name, unit, has_changed)
        _remove_all_but(environment)
        return
    node = {key: value for key, value in os.environ.items() if not _is_of_the_session(key)}
    node.update(variables)
    node.update((variable, str(path)) for variable, path in files.items())
    if is_connected(program, node):
        if has_changed:
            say("a node runs here already, as it was before: end it, and run this line again")
        else:
            say("this node runs here already, and is connected")
        return
    _remove_all_but(environment)
    say("the node starts in the foreground; this line starts it again later")
    os.execve(program, [str(program), "run"], node)  # noqa: S606 - it becomes the node


def _is_of_the_session(variable: str) -> bool:
    return variable.startswith(("IOP_EDGE", "IOP_NODE_")) and variable != "IOP_NODE_METRICS"


def _remove_all_but(environment: Path) -> None:
    for other in environment.parent.glob("venv-*"):
        if other != environment:
            shutil.rmtree(other, ignore_errors=True)


def main(arguments: list[str]) -> int:
    python = sys.version_info[:2]
    if python < MIN_PYTHON:
        say(f"Python {_dotted(MIN_PYTHON)} or newer is needed; this is {_dotted(python)}")
        return EXIT_REFUSED
    os.umask(0o022)
    try:
        join(options_of(arguments))
    except Refused as refused:
        say(str(refused))
        return EXIT_REFUSED
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        say(f"{where}{error.strerror or error}{ELSEWHERE}")
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.tracebacklimit = 1000  # the line that runs this sets it to 0, for a short word of its own
    sys.exit(main(sys.argv[3:]))
