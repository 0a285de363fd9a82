from __future__ import annotations

import pytest

from iop_shared.rpc.rules import MAX_HEADERS_BYTES, MAX_STREAMS, Rules

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")]


def agreed() -> tuple[Rules, Rules]:
    """A client's and a server's, who have greeted each other."""
    client, server = Rules(is_client=True), Rules(is_client=False)
    client.initiate_connection()
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    server.receive_data(client.data_to_send())
    return client, server


def test_a_peer_is_told_one_call_less_than_is_borne() -> None:
    client, server = agreed()
    assert client.remote_settings.max_concurrent_streams == MAX_STREAMS
    assert client.remote_settings.max_header_list_size == MAX_HEADERS_BYTES
    assert client.remote_settings.enable_push == 0
    assert server.local_settings.max_concurrent_streams == MAX_STREAMS + 1


@pytest.mark.parametrize("is_client", [True, False])
def test_a_call_has_begun_once_its_headers_were_there(is_client: bool) -> None:
    client, server = agreed()
    client.send_headers(1, HEADERS)
    client.send_headers(5, HEADERS)
    server.receive_data(client.data_to_send())
    rules = client if is_client else server
    begun = [number for number in range(12) if rules.has_begun(number)]
    assert begun == [1, 3, 5]  # the third was passed over, and can never begin


def test_of_many_sizes_for_the_table_the_least_and_the_last_are_told() -> None:
    client, server = agreed()
    for size in (100, 0, 4096, 7, 900):
        client.encoder.header_table_size = size
        client.settle_table()
        assert len(client.encoder.table_size_changes) <= 2
    assert client.encoder.table_size_changes == [0, 900]
    client.send_headers(1, HEADERS)
    server.receive_data(client.data_to_send())
    assert server.decoder.header_table_size == 900
