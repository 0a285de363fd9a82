"""End with the parent: no process of the demo or the tests outlives the one that started it.

`python tether.py COMMAND…` ties itself to its parent and then *becomes* the command, so pid, exit
status and signals are the command's own. Linux alone has such a tie; elsewhere the starter's own
clean-up must do. This file imports nothing of the project: it runs without site-packages.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the thread that started this process ends.

    Exits at once if the parent is gone already (it ended before the tie was made).
    """
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - becoming the command is the purpose
