"""ONNX Runtime behind a server, beside a bare loop over the same session with the same one thread.

The bare loop runs right before the server is measured, while the server has nothing to do. It has the machine to
itself, whereas a server shares the two cores with the client, so a share of 1 is more than a server can reach.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import bare_loop, onnx_models, payloads, wrk
from .onnx_models import BATCH, CLASSES, OnnxModel
from .payloads import JSON_LENGTH_HEADER, Payload, WrongAnswerError
from .servers import Program, Server
from .workloads import BATCH as MEAN_BATCH
from .workloads import RATE, Figures, Metric, Subject, executions, figures_with_cpu

SHARE = Metric("share of a bare loop", True)
BARE = Metric("bare loop, rows/s", None)
BARE_MS = Metric("bare loop, ms a run", None)

# Results differ in their last digits with the size of the batch.
TOLERANCE = 1e-3


def available() -> bool:
    """Whether the packages are there that make and run the models."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


@dataclass(frozen=True)
class ComputedPayload(Payload):
    """A KServe request whose answer is floats that are as good as `echo`."""

    def check(self, body: bytes, json_length: str | None) -> None:
        if json_length is None:
            raise WrongAnswerError(f"{self.path}: no {JSON_LENGTH_HEADER} header in the answer to a binary request")
        require_close(self, body[int(json_length) :])


@dataclass(frozen=True)
class PlainComputedPayload(Payload):
    """The same as bare bytes, on a route of its own, as the rivals have it."""

    @property
    def path(self) -> str:
        return f"/{self.model}"

    def check(self, body: bytes, json_length: str | None) -> None:
        require_close(self, body)


class OnnxLoad:
    """Rows for `model`, each a request of its own, from as many connections as keep its batches full.

    `rows` is the size of the bare loop's batches: the better of 1 and BATCH for the model.
    """

    large = True
    backend = "onnxruntime"
    # Where its models are served from, by what name a file is known, and its output
    repository, file, output = "onnx", "model.onnx", "Y"
    write = staticmethod(onnx_models.write)

    def __init__(self, model: OnnxModel, connections: int, kinds: int, rows: int) -> None:
        what = "image of 600 KiB" if model.values > 1 << 12 else f"{model.values} floats"
        self.name = f"{self.backend} {model.name}, {what}, {connections} connections"
        self._model = model
        self._connections = connections
        self._kinds = kinds
        self._rows = rows

    def serves(self, program: Program) -> bool:
        return program.onnx

    def prepare(self, subject: Subject) -> None:
        server = self._server(subject)
        with server.awake():
            for payload in self._payloads(subject):
                payloads.send(server.http_port, payload)
            self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self._server(subject)
        path = subject.workspace / self.repository / self._model.name / "1" / self.file
        bare = bare_loop.run(sys.executable, path, self._model.values, self._rows, seconds)
        with server.awake():
            stats = f"/v2/models/{self._model.name}/stats"
            counts = executions(server.get(stats)) if subject.program.kserve else (0, 0)
            figures = figures_with_cpu(server, lambda: self._load(subject, server, seconds))
            if subject.program.kserve:
                rows, runs = (b - a for a, b in zip(counts, executions(server.get(stats)), strict=True))
                figures[MEAN_BATCH] = rows / runs
        return {
            SHARE: figures[RATE] / bare.rows_per_s,
            **figures,
            BARE: bare.rows_per_s,
            BARE_MS: bare.ms_per_run,
        }

    def _server(self, subject: Subject) -> Server:
        return subject.serving(self.repository, self.write)

    def _load(self, subject: Subject, server: Server, seconds: int) -> wrk.Load:
        first, *others = self._payloads(subject)
        script = subject.workspace / (re.sub(r"\W+", "_", f"{subject.program.name} {self._model.name}") + ".lua")
        if not script.exists():
            wrk.write_script(script, first, *others)
        return wrk.run(server.http_port, script, first, self._connections, seconds)

    def _payloads(self, subject: Subject) -> list[Payload]:
        make: Callable[..., Payload] = self._kserve if subject.program.kserve else self._plain
        return [make(number, given, self._answers[number]) for number, given in enumerate(self._inputs)]

    @cached_property
    def _inputs(self) -> list[np.ndarray[Any, Any]]:
        return onnx_models.inputs(self._model, self._kinds)

    @cached_property
    def _answers(self) -> list[bytes]:
        session = onnx_models.session_of(self._model)
        return [session.run(None, {"X": given})[0].tobytes() for given in self._inputs]

    def _kserve(self, number: int, given: np.ndarray[Any, Any], answer: bytes) -> Payload:
        size = {"binary_data_size": given.nbytes}
        request = {
            "id": f"request-{number:04}",
            "inputs": [{"name": "X", "shape": list(given.shape), "datatype": "FP32", "parameters": size}],
            "outputs": [{"name": self.output, "parameters": {"binary_data": True}}],
        }
        text = json.dumps(request).encode()
        headers = {"Content-Type": "application/octet-stream", JSON_LENGTH_HEADER: str(len(text))}
        return ComputedPayload(self._model.name, headers, text + given.tobytes(), answer)

    def _plain(self, number: int, given: np.ndarray[Any, Any], answer: bytes) -> Payload:
        headers = {"Content-Type": "application/octet-stream"}
        return PlainComputedPayload(self._model.name, headers, given.tobytes(), answer)


def require_close(payload: Payload, raw: bytes) -> None:
    """Raises WrongAnswerError unless these floats are those that the model computes."""
    assert isinstance(payload.echo, bytes)
    expected, found = np.frombuffer(payload.echo, np.float32), np.frombuffer(raw, np.float32)
    if found.shape != (CLASSES,) or not np.allclose(found, expected, TOLERANCE, TOLERANCE * abs(expected).max()):
        raise WrongAnswerError(f"{payload.path}: the answer is {found}, not {expected}")


def all_loads() -> list[OnnxLoad]:
    dense_1ms, dense_10ms, image_1ms, image_10ms = onnx_models.MODELS
    return [
        OnnxLoad(dense_1ms, 128, 64, BATCH),
        OnnxLoad(dense_10ms, 128, 64, BATCH),
        OnnxLoad(image_1ms, 16, 8, 1),
        OnnxLoad(image_10ms, 16, 8, 1),
    ]
