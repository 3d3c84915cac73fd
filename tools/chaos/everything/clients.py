"""Clients of the further models, and those who should not get in."""

from __future__ import annotations

import gzip
import json
import random
import time
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from ..grpc_clients import Cancelling, GrpcClient, Unary, asking
from ..http_clients import Binary, HttpClient, Vanishing, read
from ..world import ANSWER_WITHIN_S, Refused, World, Wrong
from .tokens import FORGOTTEN_WITHIN_S, GUEST


class Mixed(Binary):
    """Through an ensemble of Python, ONNX, and a model that calls another."""

    model, factor, more = "mixed", -6.0, -3.0


class UnaryMixed(Unary):
    model, factor, more = "mixed", -6.0, -3.0


class Limited(Binary):
    """A model that nonsense comes of when it runs at the same time as another that wants its resource."""

    model, factor, more = "limited", 1.0, 1.0


class Urgent(Limited):
    model = "urgent"


class Zipped(Binary):
    """Compressed both ways."""

    def ask(self) -> None:
        x, body, headers = self.request()
        headers |= {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
        response = self.post(f"/v2/models/{self.model}/infer", gzip.compress(body, 1), headers)
        answer = read(response)
        if response.headers.get("Content-Encoding") == "gzip":
            answer = gzip.decompress(answer)
        y = np.frombuffer(answer[int(response.headers["Inference-Header-Content-Length"]) :], np.float32)
        if not np.array_equal(y, 2 * x[0] + 1):
            raise Wrong(f"works({x[0, 0]:.0f} x {x.size}), compressed, = {y[:3]} x {y.size}")


class Late(HttpClient):
    """Of two priorities, and with little time: what is not refused is right all the same."""

    def ask(self) -> None:
        x = [self.random.randrange(1 << 20) for _ in range(self.random.choice([1, 2000]))]
        parameters = {"priority": self.random.choice([1, 2]), "timeout": self.random.choice([1000, 30_000, 1_000_000])}
        answer = self.infer_json("late", "X", "FP32", x, parameters=parameters)
        if answer["outputs"][0]["data"] != [5 * value for value in x]:
            raise Wrong(f"late({x[:3]} x {len(x)}) = {str(answer)[:200]}")


class Texts(HttpClient):
    """Strings, long and short ones, through a backend that is no model."""

    def ask(self) -> None:
        size = self.random.choice([0, 1, 50, 20_000])
        texts = [f"{self.name} {self.random.random()} {'ä' * size}" for _ in range(self.random.choice([1, 8]))]
        answer = self.infer_json("echo", "INPUT0", "BYTES", texts)
        if answer["outputs"][0]["data"] != texts:
            raise Wrong(f"echo({texts[0][:50]!r}, ...) = {str(answer)[:200]}")


class Cached(HttpClient):
    """Of few inputs, so that most answers are kept ones; never one of a model that has been replaced since."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self._generation = 0
        self._turn = 0

    def ask(self) -> None:
        generation = self.world.generation
        x = np.full((1, self.random.choice([1, 3000])), self.random.randrange(20), np.float32)
        turn = self.answered(x)
        if generation == self._generation and turn < self._turn:
            raise Wrong(f"cached answered of turn {turn} after {self._turn}")
        self._generation, self._turn = generation, turn

    def answered(self, x: np.ndarray) -> int:
        """The turn of the model that has answered. Raises Wrong."""
        outputs = self.infer_json("cached", "X", "FP32", x[0].tolist())["outputs"]
        values = {output["name"]: output["data"] for output in outputs}
        if values["Y"] != (3 * x[0] + 1).tolist():
            raise Wrong(f"cached({x[0, 0]} x {x.size}) = {values['Y'][:3]}")
        return int(values["TURN"][0])


class Together:
    """Asks what all others of its kind ask at that time."""

    random: random.Random
    sizes: tuple[int, ...] = (1, 300_000)

    def tensor(self) -> np.ndarray:
        return np.full((1, self.random.choice(self.sizes)), int(time.monotonic() * 5) % 1000, np.float32)


class Moody(Together, Binary):
    """A model with a cache that sometimes fails."""

    model, factor, more = "moody", 3.0, 1.0


class Twins(Together, Binary):
    """An ensemble of two steps that ask the same of it."""

    model, factor, more = "twins", 6.0, 2.0


class UnaryTwins(Together, Unary):
    model, factor, more = "twins", 6.0, 2.0


class VanishingTwins(Together, Vanishing):
    """From among those whose answer is waited for."""

    tensor_models = ("twins", "moody")


class CancellingTwins(Together, Cancelling):
    """Streams of equal requests that are reset, or end with the first that fails."""

    # Both requests fit into one frame.
    sizes = (1, 1000)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (*super().metadata, ("triton_grpc_error", "true"))

    def requests(self) -> list[Any]:
        x = self.tensor()
        return [asking(self.random.choice(["moody", "twins"]), "X", x)] * 2


class Released(HttpClient):
    """Of either server of a rolling update, where there are two: each answers as the files that it has."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self._port = 0

    def port(self) -> int:
        return self._port or self.world.http_port

    def ask(self) -> None:
        server = self.random.choice(self.world.releases)
        if server.port != self._port:
            self.hang_up()
        self._port = server.port
        began = len(server.history)
        model = self.random.choice(["released", "flow"])
        x = np.full((1, self.random.choice([1, 3000])), self.random.randrange(20), np.float32)
        y = np.array(self.infer_json(model, "X", "FP32", x[0].tolist())["outputs"][0]["data"])
        due = server.since(began)
        if not any(np.array_equal(y, 10 * x[0] + release) for release in due):
            which = "the neighbour" if server.port else "the server"
            raise Wrong(f"{model}({x[0, 0]} x {x.size}) of {which} = {y[:3]} x {y.size}, where {sorted(due)} is due")


class UnaryCached(GrpcClient):
    """The same over gRPC."""

    def call(self) -> None:
        x = np.full((1, self.random.choice([1, 3000])), self.random.randrange(20), np.float32)
        request = asking("cached", "X", x)
        request.outputs.add(name="Y")
        answer = self.stub.ModelInfer(request, **self.options)
        y = np.frombuffer(answer.raw_output_contents[0], np.float32)
        if not np.array_equal(y, 3 * x[0] + 1):
            raise Wrong(f"cached({x[0, 0]} x {x.size}) = {y[:3]} x {y.size}")


class Intruder(HttpClient):
    """Shows no token, a wrong one, one that was withdrawn, and one that is not good for this: it never gets in."""

    pause_s = 0.05
    doors = (
        ("/v2/models/echo/infer", b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":[""]}]}'),
        ("/v2/repository/models/works/unload", b""),
        ("/v2/logging", b"{}"),
    )

    def ask(self) -> None:
        world = self.world
        if not world.token:
            return
        tokens = ["", "not-a-token-of-anybody", GUEST]
        if world.withdrawn and time.monotonic() - world.withdrawn_at > FORGOTTEN_WITHIN_S:
            tokens.append(world.withdrawn)
        token = self.random.choice(tokens)
        path, body = self.random.choice(self.doors)
        status, text = world.post(path, body, {"Authorization": f"Bearer {token}"} if token else {})
        if status not in (401, 403):
            raise Wrong(f"{path} with the token {token!r}: {status} {text[:100]!r}")


class UnaryIntruder(GrpcClient):
    """The same over gRPC."""

    pause_s = 0.05

    def call(self) -> None:
        if not self.world.token:
            return
        token = self.random.choice(["not-a-token-of-anybody", GUEST])
        request = service_pb2.ModelInferRequest(model_name="echo")
        request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"")
        try:
            self.stub.ModelInfer(request, timeout=ANSWER_WITHIN_S, metadata=(("authorization", f"Bearer {token}"),))
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return
            raise
        raise Wrong(f"ModelInfer with the token {token!r} was answered")


class Reads(HttpClient):
    """What people and their tools look at all the time: metrics, the page with its data, statistics, the index."""

    pause_s = 0.1
    # (of the metrics port, method, path)
    paths = (
        (True, "GET", "/metrics"),
        (True, "GET", "/"),
        (True, "GET", "/status.json"),
        (False, "GET", "/v2/models/stats"),
        (False, "POST", "/v2/repository/index"),
        (False, "GET", "/v2/models/works"),
        (False, "GET", "/v2/models/mixed/config"),
        (False, "GET", "/v2/systemsharedmemory/status"),
        (False, "GET", "/v2/trace/setting"),
    )

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self._of_metrics = False

    def port(self) -> int:
        return self.world.metrics_port if self._of_metrics else self.world.http_port

    def ask(self) -> None:
        self.hang_up()
        self._of_metrics, method, path = self.random.choice(self.paths)
        text = read(self.post(path, None, method=method))
        if path == "/":
            if not text.rstrip().endswith(b"</html>"):
                raise Wrong(f"half a page: ... {text[-100:]!r}")
        elif path == "/metrics":
            for line in text.decode().splitlines():
                if not line.startswith("#"):
                    float(line.rpartition(" ")[2])
        else:
            json.loads(text)


class Probes(HttpClient):
    """Is it alive? It always is, and over a connection of its own it always says so."""

    pause_s = 0.05

    def ask(self) -> None:
        self.hang_up()
        try:
            read(self.post("/v2/health/live", None, method="GET"))
        except Refused as error:
            if self.world.generation % 2:
                raise  # it is being stopped
            raise Wrong(f"live: {error}") from None
