"""The demo: a model server, one edge, two nodes, and a refresh that harms nothing.

Everything here stands outside the product and uses it as anybody would: by its commands, its
config file, its admin surface and the official client.
"""
