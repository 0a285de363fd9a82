"""Bytes to a tree of plain values in which everything knows its place. YAML 1.2, core schema."""
