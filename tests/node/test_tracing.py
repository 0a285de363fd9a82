"""Whether a node traces, by its environment and by what is installed."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from iop_node import app
from iop_node.identity import SettingsInvalid
from iop_node.settings import NodeSettings, read_settings
from iop_shared.otlp import OtlpExporter


def settings(endpoint: str | None) -> NodeSettings:
    environment = {"IOP_EDGE": "127.0.0.1:1", "IOP_NODE_TOKEN": "t" * 32}
    if endpoint is not None:
        environment["IOP_OTLP_ENDPOINT"] = endpoint
    return read_settings(environment)


@pytest.mark.req("OPS-3", "NODE-1")
def test_a_node_traces_where_its_environment_names_a_collector() -> None:
    assert app._exporter(settings(None), "one") is None
    assert app._exporter(settings("  "), "one") is None
    assert isinstance(app._exporter(settings("http://127.0.0.1:4318"), "one"), OtlpExporter)
    assert settings("https://c.example/otlp").otlp_endpoint == "https://c.example/otlp"


@pytest.mark.req("OPS-3")
def test_without_the_extra_a_node_says_so_and_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "can_export", lambda: False)
    with capture_logs() as lines:
        assert app._exporter(settings("http://127.0.0.1:4318"), "one") is None
    [line] = lines
    assert (line["event"], line["log_level"]) == ("not_installed", "warning")
    assert "iop[otel]" in line["text"]


@pytest.mark.req("OPS-3", "SEC-1")
@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "grpc://collector:4317",
        "http://",
        "http://collector:0",
        "http://collector:99999",
        "http://user:canary@collector:4318",
        "http://collector:4318/?key=canary",
        "http://[collector",
    ],
)
def test_what_is_no_address_of_a_collector_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(SettingsInvalid, match="IOP_OTLP_ENDPOINT") as caught:
        settings(endpoint)
    assert "canary" not in str(caught.value)
