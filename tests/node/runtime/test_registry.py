from __future__ import annotations

import os

import pytest
import trustme

from iop.runtime_pb2 import NodeConfigPayload
from iop_node.adapters.kinds import KINDS
from iop_node.runtime.registry import AdapterRegistry, PayloadRefused
from iop_node.runtime.resolve import NodeSources

BASE_URL = "http://127.0.0.1:1"


def one_adapter(**header) -> NodeConfigPayload:
    payload = NodeConfigPayload(generation=1)
    upstream = payload.adapters.add(key="a").openai_compat.upstream
    upstream.base_url = BASE_URL
    if header:
        upstream.headers.add(**{"name": "Authorization", **header})
    return payload


def build(payload, environ=None, kinds=KINDS) -> AdapterRegistry:
    return AdapterRegistry.build(payload, NodeSources(environ=environ or {}), kinds)


def refusal_of(payload, environ=None, kinds=KINDS) -> PayloadRefused:
    with pytest.raises(PayloadRefused) as refused:
        build(payload, environ, kinds)
    return refused.value


class TestBuilding:
    def test_an_empty_payload_is_a_registry_of_nothing(self):
        registry = build(NodeConfigPayload(generation=3))
        assert registry.generation == 3
        assert not registry.adapters
        assert not registry.providers

    def test_providers_carry_their_capacity_and_adapter(self):
        payload = one_adapter()
        payload.providers.add(id="p", adapter="a", models=["m"], capacity=4)
        (provider,) = build(payload).providers.values()
        assert (provider.id, provider.adapter, provider.capacity) == ("p", "a", 4)

    @pytest.mark.req("CFG-12")
    def test_a_provider_may_stand_without_its_adapter(self):
        payload = NodeConfigPayload(generation=1)
        payload.providers.add(id="p", capacity=1)
        assert "p" in build(payload).providers

    @pytest.mark.req("NODE-4")
    def test_the_drain_deadline_is_the_payloads_and_has_a_default_where_it_names_none(self):
        payload = NodeConfigPayload()
        assert build(payload).drain_s == 600
        payload.runtime.drain_deadline_ms = 1500
        assert build(payload).drain_s == 1.5
        payload.runtime.drain_deadline_ms = 0
        assert build(payload).drain_s == 0

    @pytest.mark.req("CFG-2")
    def test_headers_are_resolved_on_the_node_with_their_scheme(self, tmp_path, workshop):
        specs = []
        (tmp_path / "key").write_text("from-file\n")
        payload = one_adapter(node_env="KEY", scheme="Bearer")
        upstream = payload.adapters[0].openai_compat.upstream
        upstream.headers.add(name="X-Key", node_file=str(tmp_path / "key"))
        upstream.headers.add(name="X-Tag", text="plain")

        def record(config, spec):
            specs.append(spec)
            return workshop.build(config, spec)

        build(payload, {"KEY": "from-env"}, {"openai_compat": record})
        assert specs[0].headers == (
            ("Authorization", "Bearer from-env"),
            ("X-Key", "from-file"),
            ("X-Tag", "plain"),
        )
        assert "from-env" not in repr(specs[0])


class TestRefusals:
    """Every one names the part and says what is wrong, and none of them echoes a secret."""

    @pytest.mark.req("NODE-3", "REF-9")
    def test_a_missing_ca_file(self):
        payload = one_adapter()
        payload.adapters[0].openai_compat.upstream.ca_file = "/nowhere/ca.pem"
        refusal = refusal_of(payload)
        assert refusal.code == "missing_ca_file"
        assert "/nowhere/ca.pem" in refusal.reason
        assert "adapter a" in refusal.reason

    @pytest.mark.parametrize("content", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nx\n"])
    def test_a_ca_file_that_holds_no_certificate(self, tmp_path, content):
        file = tmp_path / "ca.pem"
        file.write_text(content)
        payload = one_adapter()
        payload.adapters[0].openai_compat.upstream.ca_file = str(file)
        assert refusal_of(payload).code == "bad_ca_file"

    def test_a_missing_environment_variable(self):
        refusal = refusal_of(one_adapter(node_env="VLLM_KEY"))
        assert refusal.code == "missing_env"
        assert "VLLM_KEY" in refusal.reason

    @pytest.mark.parametrize("make", ["absent", "empty", "directory", "huge"])
    def test_a_header_file_that_gives_nothing(self, tmp_path, make):
        path = tmp_path / "key"
        if make == "empty":
            path.write_text(" \n")
        elif make == "directory":
            path.mkdir()
        elif make == "huge":
            path.write_bytes(b"x" * 2_000_000)
        assert refusal_of(one_adapter(node_file=str(path))).code == "missing_file"

    @pytest.mark.req("SEC-1")
    @pytest.mark.parametrize("value", ["s3cret\r\nX-Evil: 1", "s3cret\x00"])
    def test_a_value_that_would_break_the_request(self, value):
        refusal = refusal_of(one_adapter(node_env="KEY"), {"KEY": value})
        assert refusal.code == "bad_header"
        assert "s3cret" not in str(refusal)

    @pytest.mark.parametrize("name", ["X Evil", "X\r\nEvil", "", "Content-Length", "host"])
    def test_a_header_that_is_not_the_configs_to_set(self, name):
        assert refusal_of(one_adapter(name=name, text="1")).code == "bad_header"

    @pytest.mark.req("NODE-3")
    @pytest.mark.parametrize("header", [{"node_file": True}, None], ids=["header", "authority"])
    def test_a_pipe_is_no_file_and_holds_nobody_up(self, tmp_path, header):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        payload = one_adapter(**({"node_file": str(pipe)} if header else {}))
        if not header:
            payload.adapters[0].openai_compat.upstream.ca_file = str(pipe)
        refusal = refusal_of(payload)
        assert refusal.code == ("missing_file" if header else "missing_ca_file")
        assert "no regular file" in refusal.reason

    @pytest.mark.req("NODE-3")
    def test_a_variable_whose_bytes_are_no_text_is_told_as_such(self):
        refusal = refusal_of(one_adapter(node_env="KEY"), {"KEY": "key-\udcff"})
        assert (refusal.code, "key-" in refusal.reason) == ("bad_header", False)

    @pytest.mark.req("NODE-3")
    def test_a_scheme_can_smuggle_no_more_into_a_header_than_its_value_can(self):
        refusal = refusal_of(one_adapter(text="key", scheme="Bearer\r\nX-Evil: 1"))
        assert refusal.code == "bad_header"

    @pytest.mark.parametrize(
        ("url", "code"),
        [
            ("file:///etc/passwd", "bad_base_url"),
            ("http://user:s3cret@host", "bad_base_url"),
            ("http://169.254.169.254", "link_local_refused"),
        ],
    )
    def test_a_base_url_that_a_node_does_not_dial(self, url, code):
        payload = one_adapter()
        payload.adapters[0].openai_compat.upstream.base_url = url
        refusal = refusal_of(payload)
        assert refusal.code == code
        assert "s3cret" not in str(refusal)

    def test_an_operation_url_that_a_node_does_not_dial(self):
        payload = one_adapter()
        payload.adapters[0].openai_compat.profile.operation_urls["models"] = "http://169.254.1.1/"
        refusal = refusal_of(payload)
        assert refusal.code == "link_local_refused"
        assert "operation models" in refusal.reason

    def test_an_adapter_of_a_kind_this_node_does_not_know(self):
        payload = NodeConfigPayload()
        payload.adapters.add(key="a")
        refusal = refusal_of(payload)
        assert refusal.code == "unknown_adapter_kind"
        assert "openai_compat" in refusal.reason

    def test_a_provider_that_names_an_adapter_which_is_not_there(self):
        payload = one_adapter()
        payload.providers.add(id="p", adapter="b", capacity=1)
        assert refusal_of(payload).code == "unknown_adapter"

    def test_the_same_id_twice(self):
        payload = one_adapter()
        payload.adapters.add(key="a").CopyFrom(payload.adapters[0])
        assert refusal_of(payload).code == "duplicate_id"
        payload = one_adapter()
        payload.providers.add(id="p", adapter="a")
        payload.providers.add(id="p", adapter="a")
        assert refusal_of(payload).code == "duplicate_id"


@pytest.mark.req("NODE-3")
class TestSharing:
    def shares(self, before, after, environ_before=None, environ_after=None) -> bool:
        old, new = build(before, environ_before), build(after, environ_after)
        return new.sharing([old]).adapters["a"] is old.adapters["a"]

    def test_an_adapter_of_equal_config_is_carried_over_as_the_same_object(self):
        assert self.shares(one_adapter(), one_adapter())

    def test_the_order_in_which_a_map_was_filled_is_no_difference(self):
        before, after = one_adapter(), one_adapter()
        before.adapters[0].openai_compat.profile.model_mapping.update({"x": "1", "y": "2"})
        after.adapters[0].openai_compat.profile.model_mapping.update({"y": "2", "x": "1"})
        assert self.shares(before, after)

    def test_another_timeout_is_a_difference(self):
        after = one_adapter()
        after.adapters[0].openai_compat.upstream.idle_timeout_ms = 7
        assert not self.shares(one_adapter(), after)

    def test_another_value_behind_the_same_variable_is_a_difference(self):
        payload = one_adapter(node_env="KEY")
        assert self.shares(payload, payload, {"KEY": "old"}, {"KEY": "old"})
        assert not self.shares(payload, payload, {"KEY": "old"}, {"KEY": "new"})

    def test_another_content_of_the_same_file_is_a_difference(self, tmp_path):
        file = tmp_path / "key"
        payload = one_adapter(node_file=str(file))
        file.write_text("old")
        old = build(payload)
        file.write_text("new")
        assert build(payload).sharing([old]).adapters["a"] is not old.adapters["a"]

    def test_another_certificate_in_the_same_ca_file_is_a_difference(self, tmp_path):
        file = tmp_path / "ca.pem"
        payload = one_adapter()
        payload.adapters[0].openai_compat.upstream.ca_file = str(file)
        trustme.CA().cert_pem.write_to_path(str(file))
        old = build(payload)
        assert build(payload).sharing([old]).adapters["a"] is old.adapters["a"]
        trustme.CA().cert_pem.write_to_path(str(file))
        assert build(payload).sharing([old]).adapters["a"] is not old.adapters["a"]

    def test_an_equal_adapter_under_another_key_is_its_own(self):
        after = one_adapter()
        after.adapters[0].key = "b"
        old = build(one_adapter())
        assert build(after).sharing([old]).fresh == {"b"}


class TestStarting:
    async def test_starts_what_is_fresh_and_nothing_else(self, workshop, payload, sources):
        old = AdapterRegistry.build(payload(1, a="1", b="1"), sources, workshop.kinds)
        await old.start()
        new = AdapterRegistry.build(payload(2, a="1", b="2", c="1"), sources, workshop.kinds)
        await new.sharing([old]).start()
        assert workshop.started == ["a", "b", "b", "c"]

    @pytest.mark.req("NODE-3")
    async def test_one_that_does_not_start_leaves_none_behind(self, workshop, payload, sources):
        workshop.broken.add("b")
        registry = AdapterRegistry.build(payload(1, a="1", b="1", c="1"), sources, workshop.kinds)
        with pytest.raises(PayloadRefused) as refused:
            await registry.start()
        assert refused.value.code == "adapter_start_failed"
        assert (workshop.started, workshop.stopped) == (["a"], ["a"])
