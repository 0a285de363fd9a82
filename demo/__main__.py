"""`python -m demo`: see `demo.play`."""

import signal

# While modules load nothing has been started yet: an interrupt simply ends.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from demo.play import main  # noqa: E402 - after the line above, on purpose

main()
