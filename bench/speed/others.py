"""The peers that others have written, each as its own documentation starts it: one process.

All keep connections to the upstream; those that can ask for the caller's token do.
"""

from __future__ import annotations

import json
import socket

from bench.speed import installs
from bench.speed.answers import MODEL
from bench.speed.running import CALLER_TOKEN, Running
from demo.processes import Group, Process, free_ports, until

_NGINX = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_requests 100000000;
  upstream models {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      if ($http_authorization != "Bearer {token}") {{ return 401; }}
      proxy_pass http://models;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def nginx(group: Group, upstream: int) -> Running:
    command, [port] = installs.nginx(), free_ports(1)
    config = group.folder / "nginx.conf"
    config.write_text(_NGINX.format(upstream=upstream, port=port, token=CALLER_TOKEN))
    process = group.start("nginx", [command, "-p", group.folder, "-c", config, "-e", "stderr"])
    return _listening(process, port)


def litellm(group: Group, upstream: int) -> Running:
    command, [port] = installs.litellm(), free_ports(1)
    config = group.folder / "litellm.json"  # which is YAML too
    served = {
        "model": f"openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{upstream}/v1",
        "api_key": CALLER_TOKEN,
    }
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": served}],
                "general_settings": {"master_key": CALLER_TOKEN},
            }
        )
    )
    at = ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    # The prices of models come with it; without this it would ask for newer ones.
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return _listening(group.start("litellm", [command, "--config", config, *at], env), port)


def portkey(group: Group, upstream: int) -> Running:
    script, [port] = installs.portkey(), free_ports(1)
    process = group.start("portkey", ["node", script, f"--port={port}", "--headless"])
    headers = {
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
    }
    return _listening(process, port, headers)


def vllm_router(group: Group, upstream: int) -> Running:
    command, [port, metrics] = installs.vllm_router(), free_ports(2)
    at = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    to = ["--worker-urls", f"http://127.0.0.1:{upstream}", "--policy", "round_robin"]
    return _listening(group.start("vllm-router", [command, *at, *to]), port)


def _listening(process: Process, port: int, headers: dict[str, str] | None = None) -> Running:
    def listens() -> bool:
        """it listens"""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, watching=[process], timeout_s=120.0)
    return Running(port, {process.name: process.pid}, headers=headers or {})
