"""The stream evidence gate, pure: what of an answer may go on, and when a run repairs itself.

It decides from evidence, budgets and a clock value alone. It knows no bytes of any protocol, no
provider and no loop: the shell feeds it, and carries out what it says (GATE-1 to GATE-7).
"""
