"""The callers' protocols over IOP's own run: requests into it, its events back out (POOL-14).

For providers that do not speak the caller's protocol. Nothing is dropped silently: a field that a
run cannot express is refused by name (`unsupported_field`).
"""
