"""The root's small sections and what listens (CFG-6, CFG-7, CFG-21, SEC-2, SEC-3).

One row for each thing that is refused. The text carries a mark right before each place.
"""

from __future__ import annotations

import pytest

from tests.edge.config.rig import Bad, assert_told, cases

SECTIONS = [
    Bad("CFG-6", "out_of_range long_context_threshold_tokens", "long_context_threshold_tokens: «0"),
    Bad(
        "CFG-6", "out_of_range long_context_threshold_tokens", "long_context_threshold_tokens: «-1"
    ),
    Bad("CFG-7", "out_of_range provider_pool.max_queue", "provider_pool: {max_queue: «-1}"),
    Bad(
        "CFG-7",
        "out_of_range provider_pool.queue_timeout_ms",
        "provider_pool: {queue_timeout_ms: «-1}",
    ),
    Bad("CFG-21", "bad_address server.listen", 'server: {listen: «"50051"}'),
    Bad("CFG-21", "bad_address server.listen", 'server: {listen: «"127.0.0.1:99999"}'),
    Bad("CFG-21", "bad_address server.listen", 'server: {listen: «"::1:80"}'),
    Bad("CFG-21", "bad_address server.listen", 'server: {listen: «":80"}'),
    Bad("CFG-21", "bad_address metrics.listen", 'metrics: {listen: «"[10.0.0.1]:80"}'),
    Bad("CFG-21", "bad_address metrics.listen", 'metrics: {listen: «"[::1]"}'),
    Bad("CFG-21", "bad_address metrics.listen", 'metrics: {listen: «"300.1.1.1:80"}'),
    Bad("CFG-21", "bad_address edge.advertise", 'edge: {advertise: «"host:0"}'),
    Bad("CFG-21", "bad_url telemetry.otlp_endpoint", 'telemetry: {otlp_endpoint: «"grpc://h:1"}'),
    Bad("CFG-21", "address_taken metrics.listen", 'metrics: {listen: «"127.0.0.1:50051"}'),
    Bad(
        "CFG-21",
        "address_taken metrics.listen",
        "server: {listen: '0.0.0.0:7', insecure: true}\nmetrics: {listen: «'127.0.0.1:7'}",
    ),
    Bad("CFG-21", "address_taken admin.listen", "admin: {listen: «'127.0.0.1:9464'}"),
    Bad("CFG-21", "address_taken server.listen", "server: {listen: «'127.0.0.1:18081'}"),
    Bad("SEC-2", "bad_address admin.listen", f"admin: {{listen: «'unix:/{'x' * 107}'}}"),
    Bad("CFG-21", "missing_key server.tls", "server:\n  «tls: {cert_file: a}"),
    Bad("SEC-2", "admin_off_loopback admin.listen", 'admin: {listen: «"0.0.0.0:18081"}'),
    Bad("SEC-2", "admin_off_loopback admin.listen", 'admin: {listen: «"admin.example:18081"}'),
    Bad("SEC-2", "bad_address admin.listen", 'admin: {listen: «"unix:run/iop.sock"}'),
    Bad("SEC-3", "plaintext_off_loopback server.listen", 'server: {listen: «"0.0.0.0:50051"}'),
    Bad("SEC-3", "plaintext_off_loopback server.listen", 'server: {listen: «"[::]:50051"}'),
    Bad("SEC-3", "plaintext_off_loopback server.listen", 'server: {listen: «"edge.example:50051"}'),
    Bad("SEC-3", "plaintext_off_loopback bootstrap.listen", 'bootstrap: {listen: «"10.0.0.1:80"}'),
    Bad(
        "SEC-3",
        "plaintext_off_loopback openai.listen",
        """
        openai:
          enabled: true
          provider_id: lab
          listen: «0.0.0.0:8080
          principal_tokens: [{token_ref: t, token_hash_sha256: $HASH, principal_ref: p}]
        """,
    ),
    Bad(
        "OAI-3",
        "open_to_all openai.listen",
        "openai: {enabled: true, provider_id: lab, listen: «0.0.0.0:8080, insecure: true}",
    ),
]


@pytest.mark.parametrize("row", cases(SECTIONS))
def test_a_broken_rule_is_told_with_its_code_path_and_place(row: Bad) -> None:
    assert_told(row)
