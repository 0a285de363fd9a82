"""`python -m demo` plays the story once; `python -m demo stop` ends what KEEP=1 left running.

Nothing is left behind: every process is tied to this one, and an interrupt at any moment stops
all of them (a second one kills them). With KEEP=1 they are not tied, and are written down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo.processes import ROOT, Group, StartFailed
from demo.story import NotAsPromised, Story
from demo.voice import Voice

_KEPT = ROOT / ".demo" / "kept.json"


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    arguments.add_argument("act", nargs="?", choices=["play", "stop"], default="play")
    arguments.add_argument(
        "--small", action="store_true", help="use the small built-in upstream, not the real model"
    )
    options = arguments.parse_args()
    voice = Voice()
    if options.act == "stop":
        if not _stop_kept(voice):
            voice.say("Nothing was left running.")
        return
    _stop_kept(voice)
    keeps = os.environ.get("KEEP", "") not in ("", "0")
    sys.exit(_play(voice, keeps=keeps, is_small=options.small))


def _play(voice: Voice, *, keeps: bool, is_small: bool) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="iop-demo-"))
    group = Group(folder, outlives_parent=keeps)
    story = Story(group, voice, is_small=is_small)
    try:
        story.play()
        if keeps:
            voice.summary(story.shown)
            _keep(group, story, voice)
            return 0
        story.stop()
        voice.summary(story.shown)
    except (NotAsPromised, StartFailed) as failure:
        story.hang_up()
        _end(group)
        voice.console.print(f"\nThe demo failed: {failure}", style="red", markup=False)
        voice.say(f"Logs and config: {folder}")
        return 1
    except KeyboardInterrupt:
        story.hang_up()
        _end(group)
        voice.say("\nInterrupted; everything that was started has been stopped.")
        shutil.rmtree(folder)
        return 130
    except BaseException:
        story.hang_up()
        _end(group)
        raise
    shutil.rmtree(folder)
    return 0


def _end(group: Group) -> None:
    """Stop all, whatever comes: a second interrupt kills instead."""
    try:
        group.stop()
    except BaseException:
        group.kill()


def _keep(group: Group, story: Story, voice: Voice) -> None:
    _KEPT.parent.mkdir(exist_ok=True)
    pids = [process.pid for process in reversed(group.processes)]
    _KEPT.write_text(json.dumps({"folder": str(group.folder), "pids": pids}))
    site = story.site
    voice.heading("Left running, as you wished")
    voice.console.print(
        f"curl -N {site.openai_url}/chat/completions -H 'content-type: application/json' \\\n"
        f'  -d \'{{"model": "smol", "stream": true, '
        f'"messages": [{{"role": "user", "content": "Why is the sea salty?"}}]}}\'',
        markup=False,
    )
    voice.say(f"\nconfig   {site.config}")
    voice.say(f"refresh  .venv/bin/iop-edge config refresh --admin {site.admin_url}")
    voice.say(f"status   .venv/bin/iop-edge status --admin {site.admin_url}")
    voice.say("stop     .venv/bin/python -m demo stop")


def _stop_kept(voice: Voice) -> bool:
    """End what an earlier KEEP=1 left running. Whether there was anything."""
    if not _KEPT.exists():
        return False
    kept = json.loads(_KEPT.read_text())
    running = [pid for pid in kept["pids"] if _is_ours(pid)]
    for pid in running:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while _is_ours(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    shutil.rmtree(kept["folder"], ignore_errors=True)
    _KEPT.unlink()
    if running:
        voice.say(f"Stopped {len(running)} processes that an earlier demo had left running.")
    return bool(running)


def _is_ours(pid: int) -> bool:
    """Whether that process still runs and is one of the demo's; a pid may have been given away."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except FileNotFoundError:
        if Path("/proc").is_dir():
            return False
        listed = subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True
        )
        command = listed.stdout
    return any(word in command for word in ("iop-edge", "iop-node", "demo."))
