"""HTTP/1.1 as a client of one upstream speaks it: endpoints, connections, and answers as they come.

From the ground up: `endpoint` and `reader` are pure; `connection` carries one exchange at a time;
`dial` opens one, `pool` keeps them. Nothing here knows an adapter, a clock or a protocol's JSON.
"""
