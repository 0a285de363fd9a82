"""h2's part of a connection, bounded where h2 itself is not.

It keeps what streams there are, what headers mean, and what was agreed on. What it is never told:
the content of DATA and the windows, which are kept beside it; the settings that nobody here knows;
and a GOAWAY, after which it would take no frame of the calls that still run.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from iop_shared.rpc import frames

MAX_HEADERS_BYTES = 16 * 1024
"""Of one call, as HTTP/2 counts them. A call with more is refused."""

MAX_BORNE_HEADERS_BYTES = 64 * 1024
"""With more than this the connection ends: to refuse a call, its headers have to be read."""

MAX_STREAMS = 128
"""Calls that run at once on a connection."""


class Rules(H2Connection):
    """What either end may say next. Raises H2Error; what it says of a peer's mistake quotes it, so
    nobody may repeat it."""

    MAX_CLOSED_STREAMS = 1024
    """That are remembered; of an older one a peer is told only that it is over."""

    def __init__(self, *, is_client: bool) -> None:
        super().__init__(H2Configuration(client_side=is_client, header_encoding=None))
        self.decoder.max_header_list_size = MAX_BORNE_HEADERS_BYTES
        self.max_inbound_frame_size = frames.MAX_FRAME_BYTES
        self.local_settings = self._settings(MAX_STREAMS)

    @property
    def is_client(self) -> bool:
        return self.config.client_side

    def initiate_connection(self) -> None:
        super().initiate_connection()
        # One more than the peer is told: the call beyond is refused, and the connection lives.
        self.local_settings = self._settings(MAX_STREAMS + 1)

    def has_begun(self, stream_id: int) -> bool:
        """Whether a stream is or was open: of an idle one nothing may come (RFC 9113, 5.1)."""
        is_outbound = self.is_client == bool(stream_id & 1)
        highest = self.highest_outbound_stream_id if is_outbound else self.highest_inbound_stream_id
        return 0 < stream_id <= highest

    def settle_table(self) -> None:
        """The next headers tell every size that the peer has asked for. The least and the last are
        enough (RFC 7541, 4.2), and there may be no next headers."""
        sizes = self.encoder.table_size_changes
        if len(sizes) > 2:
            sizes[:] = [min(sizes), sizes[-1]]

    def _settings(self, max_streams: int) -> Settings:
        return Settings(
            client=self.is_client,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
                SettingCodes.MAX_FRAME_SIZE: frames.MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
            },
        )
