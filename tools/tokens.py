"""Measures a language model served by the backend `llamacpp` beside the server that comes with the same engine.

    python -m tools.tokens [--rounds 3] [--seconds 10] [--clients 1 4 8]

Both serve the example `smollm2` with the same parameters. They are asked in turn: chats that are streamed, all of them
different, by so many clients at a time. Each client is a thread that asks again as soon as its answer has ended.
Printed are the medians of the rounds: the time from a request to its first token, the time between two tokens, tokens a
second of all clients, and the processor time of each process for a token. What stubserve adds is the parent's time, and
what its stub takes more than the other server, which is the engine alone.

Needs what the examples need.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tools.bench.servers import free_ports

ROOT = Path(__file__).parents[1]
SLOTS, CONTEXT, THREADS = 8, 8192, len(os.sched_getaffinity(0))
TOKENS = 64
# The engine's server with the parameters that the example's configuration gives to the backend
ENGINE = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.kv_unified, params.verbosity = SLOTS, CONTEXT, True, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
server = xllamacpp.Server(params)
threading.Event().wait()
"""


@dataclass
class Run:
    """What the clients of one run saw. Times are in ms."""

    first_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    # Processor time for a token in µs, of each process by its name
    cost_us: dict[str, float] = field(default_factory=dict)


class Subject:
    """A server and its processes."""

    def __init__(self, name: str, port: int, processes: dict[str, psutil.Process]) -> None:
        self.name = name
        self.port = port
        self.processes = processes

    def run(self, clients: int, seconds: float, numbers: Iterator[int]) -> Run:
        run, lock = Run(), threading.Lock()
        over = time.monotonic() + seconds

        def client() -> None:
            while time.monotonic() < over:
                with lock:
                    number = next(numbers)
                first_ms, gaps_ms, tokens = _ask(self.port, number)
                with lock:
                    run.first_ms.append(first_ms)
                    run.gaps_ms += gaps_ms
                    run.tokens += tokens

        before = {name: _cpu_s(process) for name, process in self.processes.items()}
        began = time.monotonic()
        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.seconds = time.monotonic() - began
        for name, process in self.processes.items():
            run.cost_us[name] = (_cpu_s(process) - before[name]) / run.tokens * 1e6
        return run


def _ask(port: int, number: int) -> tuple[float, list[float], int]:
    """One chat: the time to its first token, the times between its events, and its tokens."""
    # The engine's server closes a connection after some requests.
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"Tell me a story about {number} birds and a tree."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    came: list[float] = []
    tokens = 0
    while line := answer.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                came.append(time.perf_counter())
    connection.close()
    assert tokens == TOKENS, f"{tokens} tokens instead of {TOKENS}"
    gaps_ms = [(after - before) * 1000 for before, after in itertools.pairwise(came)]
    return (came[0] - began) * 1000, gaps_ms, tokens


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, f"the server on port {port} has ended"
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            _ask(port, 0)
            return
        time.sleep(0.1)


@contextlib.contextmanager
def subjects() -> Iterator[list[Subject]]:
    """Both servers, ready."""
    examples = ROOT / "model_repository"
    subprocess.run([sys.executable, "-m", "stubserve", "fetch", examples], stdout=subprocess.DEVNULL, check=True)
    file = examples / "smollm2" / "1" / "model.gguf"
    engine_port, http_port, _ = free_ports()
    source = ENGINE.replace("SLOTS", str(SLOTS)).replace("CONTEXT", str(CONTEXT)).replace("THREADS", str(THREADS))
    serve = ["--openai", f"--http-port={http_port}", "--http-address=127.0.0.1", "--allow-grpc=false"]
    serve += ["--allow-metrics=false", "--model-control-mode=explicit", "--load-model=smollm2"]
    commands = (
        [sys.executable, "-c", source, str(file), str(engine_port)],
        [sys.executable, "-m", "stubserve", "serve", str(examples), *serve],
    )
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].terminate)
        engine, server = processes
        _wait(engine_port, engine)
        _wait(http_port, server)
        parent = psutil.Process(server.pid)
        stub = max(parent.children(recursive=True), key=_cpu_s)
        yield [
            Subject("engine's server", engine_port, {"engine": psutil.Process(engine.pid)}),
            Subject("stubserve", http_port, {"engine": stub, "parent": parent}),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.tokens", description="Compares two servers of one engine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    options = parser.parse_args()
    numbers = itertools.count(1)
    print(
        "| clients | server | first token p50 | p99 | between tokens p50 | p99 | tokens/s | engine, µs/token | parent |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with subjects() as both:
        for clients in options.clients:
            runs: dict[str, list[Run]] = {subject.name: [] for subject in both}
            for turn in range(options.rounds):
                for subject in both if turn % 2 else reversed(both):
                    runs[subject.name].append(subject.run(clients, options.seconds, numbers))
            for name, of_one in runs.items():
                print(f"| {clients} | {name} | {_figures(of_one)} |", flush=True)


def _figures(runs: list[Run]) -> str:
    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    times = [
        f"{median(percentile(times, percent) for times in all_times):.1f} ms"
        for all_times in ([run.first_ms for run in runs], [run.gaps_ms for run in runs])
        for percent in (50, 99)
    ]
    costs = [f"{median(run.cost_us.get(name, 0.0) for run in runs):.0f}" for name in ("engine", "parent")]
    return " | ".join([*times, f"{median(run.tokens / run.seconds for run in runs):.1f}", *costs])


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


if __name__ == "__main__":
    main()
