"""The process that reads large JSON: a real one, over a server's real memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stubserve.api.placement import BodyPlacer
from stubserve.errors import Code, ServeError
from stubserve.http.infer_document import MAX_PARAMETERS
from stubserve.http.infer_json import decode_json
from stubserve.http.json.job import HEAD, INFER, pack, pack_signature
from stubserve.http.json.process import JsonProcess
from stubserve.http.openai.routes import chat_text
from stubserve.inference.request import Request
from stubserve.inference.tensor import drop_blocks
from stubserve.memory.heap_account import MAX_WORDS_BYTES
from stubserve.memory.server_memory import Memory
from tests.inference.models import io, signature
from tests.real_server import PATIENCE_S

MIB = 1 << 20
MODEL = signature(
    "m", io("input", "IN", "FP32", "-1") + io("input", "TEXT", "STRING", "-1") + io("output", "OUT", "FP32", "-1")
)


class Reading:
    """The process, and the memory that it fills."""

    def __init__(self) -> None:
        self.memory = Memory(32 * MIB)
        self.process = JsonProcess(self.memory.block)

    async def infer(self, document: Any, tail: bytes = b"") -> Request:
        text = document if isinstance(document, (bytes, memoryview)) else json.dumps(document).encode()
        placer = BodyPlacer(bytes(text) + tail, None, 0, self.memory.store)
        request, _ = await self.process.read_infer(memoryview(text), MODEL, placer, 64 * MIB, None)
        return request

    async def has_begun(self) -> None:
        """Waits until the process has something to read."""
        while not self.process._lock.locked() or self.process._idle is not None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


def run(act: Callable[[Reading], Awaitable[None]]) -> None:
    async def whole() -> None:
        reading = Reading()
        try:
            await act(reading)
        finally:
            reading.process.close()
        assert reading.memory.ingress.live_blocks == 0

    asyncio.run(whole())


def item(name: str, datatype: str, data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data, **more}


def test_it_reads_as_the_server_would() -> None:
    values = np.arange(100_000, dtype=np.float32)
    strings = [f"text {number}" for number in range(5000)]
    binary = np.arange(1000, dtype=np.float32).tobytes()
    document = {
        "id": "an \ud800id".encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"),
        "parameters": {"own": 1.5, "sequence_id": 2**64 - 1, "binary_data_output": True},
        "inputs": [
            item("IN", "FP32", values.tolist()),
            item("TEXT", "BYTES", strings),
            {"name": "B", "datatype": "FP32", "shape": [1000], "parameters": {"binary_data_size": len(binary)}},
            item("SMALL", "INT64", [1, 2]),
        ],
        "outputs": [{"name": "OUT", "parameters": {"classification": 3}}],
    }
    text = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")

    async def act(reading: Reading) -> None:
        for _ in range(2):
            request = await reading.infer(text, binary)
            placer = BodyPlacer(text + binary, None, 0, reading.memory.store)
            expected, _ = decode_json(text, MODEL, placer, 64 * MIB)
            for name in ("id", "options", "requested_outputs"):
                assert getattr(request, name) == getattr(expected, name)
            assert [(t.name, t.datatype, t.shape, bytes(t.buffer)) for t in request.inputs] == [
                (t.name, t.datatype, t.shape, bytes(t.buffer)) for t in expected.inputs
            ]
            drop_blocks(request.inputs)
            drop_blocks(expected.inputs)

    run(act)


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        (b"{", Code.MALFORMED, "failed to parse the request JSON buffer"),
        ({"inputs": [item("IN", "FP32", ["x"])]}, Code.MALFORMED, "attempt to access JSON non-number as double"),
        ({"inputs": [], "parameters": dict.fromkeys(map(str, range(MAX_PARAMETERS + 1)), 1)}, Code.INVALID_ARG,
         "request has 10001 parameters; it may have 10000"),
        # Long words, and a refusal that quotes them
        ({"id": "x" * MAX_WORDS_BYTES, "inputs": []}, Code.INVALID_ARG, "says too much beside its tensors"),
        ({"inputs": [item("x" * MAX_WORDS_BYTES, "FP32", [1])]}, Code.INVALID_ARG, "says too much beside its tensors"),
        # More than the memory has room for
        ({"inputs": [item("A", "FP32", [1.5] * (5 * MIB)), item("IN", "FP32", [1.5] * (5 * MIB))]},
         Code.UNAVAILABLE, "--shm-limit"),
    ],
)  # fmt: skip
def test_refusals_and_what_comes_after(document: Any, code: Code, text: str) -> None:
    async def act(reading: Reading) -> None:
        with pytest.raises(ServeError) as refused:
            await reading.infer(document)
        assert (refused.value.code, text in refused.value.message) == (code, True)
        request = await reading.infer({"inputs": [item("IN", "FP32", [1.0] * 3000)]})
        assert request.inputs[0].nbytes == 12000
        drop_blocks(request.inputs)

    run(act)


def test_a_refused_text_goes_without_the_garbage_collector() -> None:
    """What a circle kept was counted by nobody: 60 MB for each of the requests that were refused lately."""

    async def act(reading: Reading) -> None:
        text = np.frombuffer(b"[" * 300_000, np.uint8).copy()
        gone = weakref.ref(text)
        gc.disable()
        try:
            with pytest.raises(ServeError):
                await reading.infer(text.data)
            del text
            await asyncio.sleep(0)  # until then the loop itself has what woke it
            assert gone() is None
        finally:
            gc.enable()

    run(act)


def test_who_goes_meanwhile_leaves_nothing() -> None:
    async def act(reading: Reading) -> None:
        document = {"inputs": [item("IN", "FP32", [1.0] * 100_000)]}
        going = asyncio.ensure_future(reading.infer(document))
        await reading.has_begun()
        going.cancel()
        request = await reading.infer(document)
        assert going.cancelled()
        drop_blocks(request.inputs)

    run(act)


def test_who_goes_while_others_are_read_takes_the_text_along() -> None:
    """What waits for its turn is counted as its request's, which is gone."""

    async def act(reading: Reading) -> None:
        document = {"inputs": [item("IN", "FP32", [1.0] * 100_000)]}
        drop_blocks((await reading.infer(document)).inputs)
        process = reading.process._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        first = asyncio.ensure_future(reading.infer(document))
        await reading.has_begun()
        text = np.frombuffer(json.dumps(document).encode(), np.uint8).copy()
        placer = BodyPlacer(b"", None, 0, reading.memory.store)
        going = asyncio.ensure_future(reading.process.read_infer(text.data, MODEL, placer, 64 * MIB, None))
        gone = weakref.ref(text)
        del text
        await asyncio.sleep(0)
        going.cancel()
        await asyncio.wait([going])
        del going
        await asyncio.sleep(0)  # until then the loop itself has what woke it
        assert gone() is None
        os.kill(process.pid, signal.SIGCONT)
        drop_blocks((await first).inputs)
        drop_blocks((await reading.infer(document)).inputs)

    run(act)


def test_a_process_that_dies_costs_one_request() -> None:
    async def act(reading: Reading) -> None:
        document = {"inputs": [item("IN", "FP32", [1.0] * 100_000)]}
        drop_blocks((await reading.infer(document)).inputs)
        process = reading.process._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        dying = asyncio.ensure_future(reading.infer(document))
        await reading.has_begun()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ServeError, match="has ended"):
            await dying
        drop_blocks((await reading.infer(document)).inputs)

    run(act)


@pytest.mark.parametrize("cut", [0, 3, HEAD.size, HEAD.size + 1, None])
def test_a_server_that_ends_leaves_nothing_in_the_log(cut: int | None) -> None:
    """It ends while it sends a job, or with an answer that it has not read."""
    text = b"not JSON"
    job = pack((INFER, pack_signature(MODEL), 0, 100))
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "stubserve.http.json.worker", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as worker:
        theirs.close()
        with ours:
            ours.sendall((HEAD.pack(len(job), len(text)) + job + text)[:cut])
            if cut is None:
                assert ours.recv(1, socket.MSG_PEEK)
        assert worker.communicate(timeout=PATIENCE_S) == (None, b"")
        assert worker.returncode == 0


def test_a_chat_template_that_does_not_end_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    async def act(reading: Reading) -> None:
        server: Any = SimpleNamespace(large_json=reading.process, max_input_size=MIB, store=reading.memory.store)

        async def text(template: str) -> str:
            given = ("m", template, {"bos_token": "<s>"})
            return await chat_text(server, given, '[{"role": "user"}]', "")

        long = "x" * 100_000
        assert await text("{{ bos_token }}{{ messages[0].role }}" + long) == "<s>user" + long
        monkeypatch.setattr("stubserve.http.openai.routes.CHAT_S", 0.2)
        with pytest.raises(ServeError, match="the chat template of model 'm' took longer than"):
            await text(endless)
        monkeypatch.undo()
        assert await text("{{ messages[0].role }}") == "user"

    run(act)
