"""What a change of the config means: what differs, whether it may take effect, what came of it.

Pure: `shape` reads the refresh classes, `diff` compares, `plan` decides, `receipt` reports.
"""
