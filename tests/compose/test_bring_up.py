"""What `docker compose up --build` makes, and who is let in."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE

import aiohttp
import pytest

from demo.processes import ROOT
from tests.compose.compose_rig import NODES, WORKERS, Site, connected, container, prompt

SPEAKS = """
import asyncio, os
from iop.runtime_pb2 import EdgeBatch, Hello, NodeBatch, NodeFrame, ProtocolRange
from iop_shared.rpc.client import dial
from iop_shared.rpc.codes import RpcError

async def speak(low, high):
    hello = Hello(
        protocol=ProtocolRange(min=low, max=high), instance_id="scripted", version="another"
    )
    token = [("authorization", "Bearer " + os.environ["TOKEN"])]
    edge = await dial("edge", 50051, tls=None)
    call = edge.call("edge", "/iop.NodeLink/Session", token, max_message_bytes=1 << 20)
    call.send(NodeBatch(frames=[NodeFrame(hello=hello)]).SerializeToString())
    try:
        batch = EdgeBatch.FromString(await call.read())
        print("welcome", batch.frames[0].welcome.protocol)
    except RpcError as error:
        print("refused", error.code.name, error.details.partition(":")[0])
    edge.close("done")

asyncio.run(speak(*map(int, os.environ["RANGE"].split("-"))))
"""


@pytest.mark.req("OPS-2")
async def test_the_printed_line_asks_the_real_model(site: Site) -> None:
    printed = "\n".join(site.logs("tokens"))
    line = printed[printed.rindex("curl ") :].replace("curl ", "curl --silent --show-error ", 1)
    await site.until(
        lambda status: any(
            m["model_id"] == "small" and m["available_providers"] for m in status["models"]
        )
    )
    typed = await asyncio.create_subprocess_shell(
        line, cwd=ROOT, env=site.env, stdin=DEVNULL, stdout=PIPE
    )
    answer = json.loads((await typed.communicate())[0])
    assert answer["model"] == "small"
    assert answer["choices"][0]["message"]["content"].strip()
    assert site.caller_token not in printed


@pytest.mark.req("OPS-2", "OPS-3")
async def test_every_service_says_that_it_is_healthy(site: Site) -> None:
    site.compose("up", "--detach", "--no-recreate", "--wait", *WORKERS, "model")
    for service in (*WORKERS, "model"):
        assert site.inspect(service, ".State.Health.Status") == "healthy"


@pytest.mark.req("OPS-2", "NODE-1")
@pytest.mark.parametrize("node", NODES)
async def test_a_node_is_given_the_edges_address_and_its_token_and_nothing_else(
    site: Site, node: str
) -> None:
    # A name without a value is one that was not set where Compose was called.
    named = [one for one in site.inspect(node, ".Config.Env") if one.startswith("IOP_")]
    given = {one for one in named if "=" in one}
    assert given == {
        "IOP_EDGE=edge:50051",
        "IOP_EDGE_INSECURE=1",
        "IOP_NODE_TOKEN_FILE=/run/secrets/iop/token",
    }
    assert [one["Destination"] for one in site.inspect(node, ".Mounts")] == ["/run/secrets/iop"]
    assert site.inspect(node, ".Config.Cmd") == ["run"]


@pytest.mark.req("OPS-2", "SEC-1")
@pytest.mark.parametrize("service", [*WORKERS, "model"])
async def test_nothing_runs_as_root_or_may_write_or_gain_rights(site: Site, service: str) -> None:
    assert site.inspect(service, ".Config.User") == "65532:65532"
    host = site.inspect(service, ".HostConfig")
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] is None
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Privileged"] is False
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] > 0


@pytest.mark.req("SEC-2", "OPS-2")
async def test_only_the_callers_port_is_published_and_only_to_this_machine(site: Site) -> None:
    for service in WORKERS:
        ports = site.inspect(service, ".NetworkSettings.Ports") or {}
        published = {port: where for port, where in ports.items() if where}
        if service == "edge":
            assert list(published) == ["8080/tcp"]
            assert [where["HostIp"] for where in published["8080/tcp"]] == ["127.0.0.1"]
        else:
            assert published == {}
    mode = site.docker("exec", container("edge"), "stat", "-c", "%a %u", "/run/iop/admin.sock")
    assert mode.split() == ["600", "65532"]


@pytest.mark.req("OAI-3", "SEC-1")
async def test_a_caller_without_the_right_token_is_turned_away(site: Site) -> None:
    body = {"model": "pair", "messages": [{"role": "user", "content": prompt("refused")}]}
    almost = site.caller_token[:-1] + ("0" if site.caller_token[-1] != "0" else "1")
    async with aiohttp.ClientSession(site.openai_url) as http:
        for headers in ({}, {"Authorization": f"Bearer {almost}"}):
            async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 401
                assert (await answer.json())["error"]["code"] == "invalid_api_key"


@pytest.mark.req("NODE-9", "SEC-1")
async def test_a_node_with_a_wrong_token_ends_and_disturbs_nobody(site: Site) -> None:
    before = {node["node_id"]: node["session"] for node in (await site.status())["nodes"]}
    wrong = "iop_node_00000000_" + "0" * 64
    given = ["-e", "IOP_NODE_TOKEN_FILE=", "-e", f"IOP_NODE_TOKEN={wrong}"]
    ran = site.ran("compose", "run", "--rm", "--no-deps", "-T", *given, "node-a")
    assert ran.returncode == 6, ran.stderr
    assert wrong not in ran.stdout + ran.stderr
    assert not [line for line in site.logs() if wrong in line]
    status = await site.status()
    assert {node["node_id"]: node["session"] for node in status["nodes"]} == before


@pytest.mark.req("OPS-2", "NODE-9")
async def test_a_newer_node_joins_where_the_ranges_meet_and_is_told_where_they_do_not(
    site: Site,
) -> None:
    site.compose("stop", "node-b")
    await site.until(lambda status: connected(status) == {"node-a"})

    def speak(spoken: str) -> list[str]:
        given = ["-e", f"RANGE={spoken}", "-e", "TOKEN", "--entrypoint", "python"]
        site.env["TOKEN"] = site.secrets["node-b"]
        network = ["--network", f"{site.env['COMPOSE_PROJECT_NAME']}_link"]
        said = site.docker("run", "--rm", "-i", *network, *given, "iop-edge", "-", stdin=SPEAKS)
        return said.split()

    assert speak("1-2") == ["welcome", "1"]
    assert speak("2-3") == ["refused", "FAILED_PRECONDITION", "protocol_mismatch"]
    assert (await site.ask(prompt("meanwhile"))).end == "done"


@pytest.mark.req("OPS-3", "SEC-1")
async def test_the_edges_metrics_can_be_scraped_and_name_no_secret(site: Site) -> None:
    fetch = (
        "import urllib.request as u; print(u.urlopen('http://edge:9464/metrics').read().decode())"
    )
    text = site.docker("exec", container("edge"), "python", "-c", fetch)
    assert 'iop_edge_node_connected{node_id="node-a"} 1.0' in text
    assert "iop_edge_process_resident_memory_bytes" in text
    assert [secret for secret in site.secrets.values() if secret in text] == []
