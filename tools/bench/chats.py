"""Chats on OpenAI's routes, all of them streamed at once: of a mock model, and of a small language model.

The mock model is coroutines that answer so many words, one at each pace. Without a pace the row shows how fast words
can be; with 50 ms they come as an engine would make them. litserve serves the same model as its documentation
recommends: coroutines, as its worker otherwise answers one stream at a time, `fast_queue`, and two processes for HTTP.

The language model is the example `smollm2`, by the backend `llamacpp`. The server that comes with the same engine is
asked beside it, with the same parameters. The difference is what stubserve adds. `stubserve fetch model_repository`
brings the model.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .payloads import WrongAnswerError
from .processes import Memory
from .report import REFERENCE
from .rivals import FOLDER
from .servers import Program, Server
from .workloads import PARENT_RSS, PSS, STUB_RSS, Figures, Metric, Subject
from .wrk import LoadError

TOKENS = Metric("tokens/s", True)
FIRST_P50, FIRST_P99 = Metric("first token p50 ms", False), Metric("first token p99 ms", False)
GAP_P50, GAP_P99 = Metric("between tokens p50 ms", False), Metric("between tokens p99 ms", False)
GAP_MAX = Metric("between tokens max ms", False)
CPU, PARENT_CPU = Metric("CPU µs per token", False), Metric("parent CPU µs per token", False)
ENGINES = {metric: Metric(f"{metric.name}, engine's server", None) for metric in (TOKENS, FIRST_P50, GAP_P50, CPU)}

PATIENCE_S = 60.0
OPENAI = ("--openai",)
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
EXAMPLE = Path(__file__).parents[2] / "model_repository" / "smollm2"
GGUF = EXAMPLE / "1" / "model.gguf"
# The engine's server with the parameters that the example's configuration gives to the backend
ENGINE = """
import os, sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.kv_unified, params.verbosity = 8, 8192, True, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
server = xllamacpp.Server(params)
threading.Event().wait()
"""


class Chat:
    """A chat on a connection of its own, and when its tokens came."""

    def __init__(self, port: int, body: dict[str, object]) -> None:
        text = json.dumps({**body, "stream": True}).encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.began = time.perf_counter()
        self.came: list[float] = []
        self.ended = False
        # The last line, as far as it has come
        self.rest = b""
        self.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
        )
        self.socket.setblocking(False)

    def read(self) -> int:
        """Takes what has come; how many tokens. A token is an event with a content that is not empty."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise LoadError(f"a chat was cut after {len(self.came)} tokens: {self.rest[-300:]!r}")
        lines, _, self.rest = (self.rest + data).rpartition(b"\n")
        count = lines.count(b'"content":"') - lines.count(b'"content":""')
        self.came += [time.perf_counter()] * count
        self.ended = b"[DONE]" in lines
        return count


class ChatLoad:
    """A number of chats at once, all asked together."""

    large = False

    def __init__(self, name: str, chats: int, tokens: int) -> None:
        self.name = name
        self._chats = chats
        self._tokens = tokens
        self._numbers = itertools.count()

    def serves(self, program: Program) -> bool:
        return program.kserve and program.name != REFERENCE

    def server(self, subject: Subject) -> Server:
        raise NotImplementedError

    def body(self, number: int) -> dict[str, object]:
        """What a chat asks; no two ask the same."""
        raise NotImplementedError

    def prepare(self, subject: Subject) -> None:
        self._measure(self.server(subject), 1, 0)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        return self._measure(self.server(subject), self._chats, seconds)

    def _measure(self, server: Server, count: int, seconds: int) -> Figures:
        """All chats once, and again until the time is up."""
        with server.awake():
            tree = server.processes()
            cpu_s, parent_s, began = tree.cpu_seconds(), tree.parent_cpu_seconds(), time.perf_counter()
            memory: list[Memory] = []
            asked: list[Chat] = []
            while not asked or time.perf_counter() < began + seconds:
                asked += self._ask(server, count, lambda: memory.append(tree.memory()))
            tokens = sum(len(chat.came) for chat in asked)
            figures = {TOKENS: tokens / (time.perf_counter() - began)}
            figures[CPU] = (tree.cpu_seconds() - cpu_s) / tokens * 1e6
            figures[PARENT_CPU] = (tree.parent_cpu_seconds() - parent_s) / tokens * 1e6
        figures |= {PSS: memory[-1].total_pss, PARENT_RSS: memory[-1].parent_rss, STUB_RSS: memory[-1].stub_rss}
        first = sorted((chat.came[0] - chat.began) * 1000 for chat in asked)
        gaps = sorted((after - before) * 1000 for chat in asked for before, after in itertools.pairwise(chat.came))
        figures |= {FIRST_P50: at(first, 50), FIRST_P99: at(first, 99)}
        return figures | {GAP_P50: at(gaps, 50), GAP_P99: at(gaps, 99), GAP_MAX: gaps[-1]}

    def _ask(self, server: Server, count: int, half_way: Callable[[], None]) -> list[Chat]:
        with selectors.EpollSelector() as selector:
            asked = [Chat(server.http_port, self.body(next(self._numbers))) for _ in range(count)]
            for chat in asked:
                selector.register(chat.socket, selectors.EVENT_READ, chat)
            left, came, half = count, 0, count * self._tokens // 2
            while left:
                ready = selector.select(PATIENCE_S)
                if not ready:
                    raise LoadError(f"nothing came for {PATIENCE_S:.0f} s, and {left} chats have not ended")
                for key, _ in ready:
                    came += key.data.read()
                    if key.data.ended:
                        selector.unregister(key.data.socket)
                        key.data.socket.close()
                        left -= 1
                if came > half:
                    half_way()
                    half = count * self._tokens * 2
        self.check(asked)
        return asked

    def check(self, asked: list[Chat]) -> None:
        for chat in asked:
            if len(chat.came) != self._tokens:
                raise WrongAnswerError(f"{self.name}: {len(chat.came)} tokens instead of {self._tokens}")


class Words(ChatLoad):
    """Of the mock model."""

    def __init__(self, chats: int = 1000, tokens: int = 100, pace_s: float = 0.0) -> None:
        pace = f"a word each {pace_s * 1000:g} ms" if pace_s else "as fast as words can be"
        super().__init__(f"{chats} chats, {pace}", chats, tokens)
        self._pace_s = pace_s

    def serves(self, program: Program) -> bool:
        return super().serves(program) or program.name == "litserve"

    def server(self, subject: Subject) -> Server:
        program = subject.program
        if not program.kserve:
            script = (str(FOLDER / "chat_with_litserve.py"), "HTTP", "2", str(self._tokens), str(self._pace_s))
            program = replace(program, arguments=(program.python, *script))
        flags = OPENAI if program.kserve else ()
        return subject.serving(f"chats-{self._pace_s:g}", self._write, flags, program)

    def body(self, number: int) -> dict[str, object]:
        return {"model": "parrot", "messages": [{"role": "user", "content": f"Tell me of {number} birds."}]}

    def _write(self, folder: Path) -> None:
        version = folder / "parrot" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(f"TOKENS, PACE_S = {self._tokens}, {self._pace_s}\n{MODEL}")


class SmolLM2(ChatLoad):
    """Of the language model, and of its engine's own server."""

    def __init__(self, chats: int, tokens: int = 64) -> None:
        super().__init__(f"SmolLM2, {chats} chat{'s'[: chats > 1]}", chats, tokens)

    def server(self, subject: Subject) -> Server:
        return subject.serving("smollm2", _link_example, OPENAI)

    def body(self, number: int) -> dict[str, object]:
        return {
            "model": "smollm2",
            "messages": [{"role": "user", "content": f"Tell me a story about {number} birds and a tree."}],
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }

    def measure(self, subject: Subject, seconds: int) -> Figures:
        figures = super().measure(subject, seconds)
        arguments = (sys.executable, "-c", ENGINE, str(GGUF), "HTTP")
        engine = Program("engine", arguments, sys.executable, dict(os.environ), ready_path="/health", polls=True)
        alone = self._measure(subject.serving("engine", Path.mkdir, (), engine), self._chats, seconds)
        return figures | {named: alone[metric] for metric, named in ENGINES.items()}

    def check(self, asked: list[Chat]) -> None:
        """A letter may be several tokens, which come as one event."""
        for chat in asked:
            if not 0 < len(chat.came) <= self._tokens:
                raise WrongAnswerError(f"{self.name}: {len(chat.came)} events instead of {self._tokens}")


def _link_example(folder: Path) -> None:
    folder.mkdir()
    (folder / EXAMPLE.name).symlink_to(EXAMPLE)


def at(values: list[float], percent: float) -> float:
    """A percentile of sorted values."""
    return values[min(int(len(values) * percent / 100), len(values) - 1)]


def all_loads(installed: bool = True) -> list[ChatLoad]:
    there = not installed or (GGUF.exists() and importlib.util.find_spec("xllamacpp") is not None)
    return [Words(pace_s=0.05), Words(), *([SmolLM2(chats) for chats in (1, 4, 8)] if there else [])]
