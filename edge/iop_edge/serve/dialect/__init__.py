"""The callers' protocols, as pure functions over bytes: no socket, no clock, no config."""
