"""From trees as written to one document: expand, refuse, normalize, merge, decode."""
