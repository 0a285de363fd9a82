"""Answers in the three caller protocols, as the stream evidence gate reads and writes them.

Upstream bytes or run events become pieces (`readers`), and the pieces that are released become the
one answer that the caller sees (`stitch`). Pure: no I/O, no clock; when something is released, and
what is thrown away, is the gate's to decide.
"""
