"""A thousand chats streamed at once, by stubserve and by litserve.

    python -m tools.streams [--servers stubserve litserve] [--streams 1000] [--tokens 100] [--paces 0.05 0] [--rounds 3]

Both serve the same model on OpenAI's routes: coroutines that answer so many words, one at each `pace` seconds. A pace
of 0 measures how fast words can be; a pace of 0.05 is 20 words a second for each stream, as an engine would make them.
The servers are asked in turn. The client is one process that waits for all connections together. Printed are the
medians of the rounds: tokens a second, the time to the first token, the time between two tokens of a stream, the
processor time of the server for a token, and its memory while all streams are under way.

litserve comes from the environment that tools/rivals.sh makes. It gets what its documentation recommends: coroutines,
as its worker otherwise answers one stream at a time, its `fast_queue`, and two processes for HTTP.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.rivals import FOLDER, rivals_folder
from tools.bench.servers import Program, Server
from tools.tokens import percentile

API_SERVERS = 2
MARK, END = b'"w', b"[DONE]"
CONFIG = """
backend: "python"
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
MODEL = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        for number in range(TOKENS):
            await asyncio.sleep(PACE_S)
            text = np.array([f"w{number} ".encode()], object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass
class Run:
    """What one run of all streams gave."""

    first_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    tokens_per_s: float = 0.0
    cpu_us: float = 0.0
    pss_mib: float = 0.0
    largest_rss_mib: float = 0.0


class Stream:
    """A chat on a connection of its own, and when its words came."""

    def __init__(self, port: int, number: int) -> None:
        text = json.dumps(
            {
                "model": "parrot",
                "stream": True,
                "messages": [{"role": "user", "content": f"Tell me of {number} birds."}],
            }
        ).encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.began = time.perf_counter()
        self.came: list[float] = []
        self.ended = False
        self._end = b""
        self.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        self.socket.setblocking(False)

    def read(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"a stream was cut after {len(self.came)} tokens: {self._end!r}"
        now = time.perf_counter()
        # A mark that lies across two reads is counted with the second, since what is kept is shorter than a mark.
        self.came += [now] * (self._end[1 - len(MARK) :] + data).count(MARK)
        tail = self._end + data
        self.ended = END in tail
        self._end = tail[1 - len(END) :]


def run(server: Server, streams: int, tokens: int) -> Run:
    """Asks for all streams, and reads them to their ends."""
    result = Run()
    tree = server.processes()
    cpu_s, began = tree.cpu_seconds(), time.perf_counter()
    with selectors.EpollSelector() as selector:
        asked = [Stream(server.http_port, number) for number in range(streams)]
        for stream in asked:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        left, came = streams, 0
        while left:
            ready = selector.select(60)
            assert ready, f"{server.name}: nothing came for 60 s, and {left} streams have not ended"
            for key, _ in ready:
                stream = key.data
                before = len(stream.came)
                stream.read()
                came += len(stream.came) - before
                if stream.ended:
                    selector.unregister(stream.socket)
                    stream.socket.close()
                    left -= 1
            if not result.pss_mib and came * 2 > streams * tokens:
                memory = tree.memory()
                result.pss_mib, result.largest_rss_mib = memory.total_pss, max(memory.parent_rss, memory.stub_rss)
    result.tokens_per_s = streams * tokens / (time.perf_counter() - began)
    result.cpu_us = (tree.cpu_seconds() - cpu_s) / (streams * tokens) * 1e6
    for stream in asked:
        assert len(stream.came) == tokens, f"{server.name}: {len(stream.came)} tokens instead of {tokens}"
        result.first_ms.append((stream.came[0] - stream.began) * 1000)
        result.gaps_ms += [(after - before) * 1000 for before, after in itertools.pairwise(stream.came)]
    return result


@contextlib.contextmanager
def servers(names: list[str], tokens: int, pace_s: float) -> Iterator[list[Server]]:
    """The servers of these names, ready."""
    programs = {"stubserve": stubserve, "litserve": litserve}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        version = folder / "models" / "parrot" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(f"TOKENS, PACE_S = {tokens}, {pace_s}\n{MODEL}")
        chosen = [programs[name](tokens, pace_s) for name in names]
        yield [stack.enter_context(Server(each, folder / "models", folder / each.name)) for each in chosen]


def stubserve(_: int, __: float) -> Program:
    serve = [sys.executable, "-m", "stubserve", "serve", "REPO", "--openai", "--http-address=127.0.0.1"]
    serve += ["--http-port", "HTTP", "--allow-grpc=false", "--allow-metrics=false"]
    return Program("stubserve", tuple(serve), sys.executable, dict(os.environ))


def litserve(tokens: int, pace_s: float) -> Program:
    python = str(rivals_folder() / "bin" / "python")
    chat = (str(FOLDER / "chat_with_litserve.py"), "HTTP", str(API_SERVERS), str(tokens), str(pace_s))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Program("litserve", (python, *chat), python, environment, ready_path="/health", polls=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.streams", description="Many streams at once, by two servers")
    parser.add_argument("--servers", nargs="+", choices=["stubserve", "litserve"], default=["stubserve", "litserve"])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--paces", type=float, nargs="+", default=[0.05, 0.0], help="seconds between two tokens")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    heads = ["pace", "server", "tokens/s", "first p50", "p99", "between p50", "p99", "max", "CPU, µs/token"]
    heads += ["all memory (PSS)", "largest process (RSS)"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for pace_s in options.paces:
        with servers(options.servers, options.tokens, pace_s) as chosen:
            runs: dict[str, list[Run]] = {server.name: [] for server in chosen}
            for turn in range(options.rounds):
                for server in chosen if turn % 2 else reversed(chosen):
                    with server.awake():
                        runs[server.name].append(run(server, options.streams, options.tokens))
        for name, of_one in runs.items():
            print(f"| {pace_s * 1000:g} ms | {name} | {_figures(of_one)} |", flush=True)


def _figures(runs: list[Run]) -> str:
    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    first = [f"{median(percentile(run.first_ms, percent) for run in runs):.0f} ms" for percent in (50, 99)]
    gaps = [f"{median(percentile(run.gaps_ms, percent) for run in runs):.1f} ms" for percent in (50, 99, 100)]
    memory = [median(run.pss_mib for run in runs), median(run.largest_rss_mib for run in runs)]
    return " | ".join(
        [
            f"{median(run.tokens_per_s for run in runs):.0f}",
            *first,
            *gaps,
            f"{median(run.cpu_us for run in runs):.0f}",
            *(f"{mib:.0f} MiB" for mib in memory),
        ]
    )


if __name__ == "__main__":
    main()
