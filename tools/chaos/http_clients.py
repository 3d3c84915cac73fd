"""Clients over HTTP: tensors as bytes and as JSON, calls between models, event streams, and those that vanish."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from .world import Client, Refused, Steps, World, Wrong

SIZES = (1, 16, 500, 20_000, 300_000)


class HttpClient(Client):
    """One connection that stays, as far as the server lets it. Its tensors have one of these `sizes`."""

    sizes: tuple[int, ...] = SIZES
    input_name = "X"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.random = random.Random(seed)
        self._connection: http.client.HTTPConnection | None = None

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def port(self) -> int:
        return self.world.http_port

    def tensor(self) -> np.ndarray:
        x = np.full((1, self.random.choice(self.sizes)), self.random.randrange(1 << 20), np.float32)
        x[0, -1] = self.random.randrange(1 << 20)
        return x

    def request(self) -> tuple[np.ndarray, bytes, dict[str, str]]:
        """A tensor, and the body that asks for it in binary, with its headers."""
        x = self.tensor()
        data = x.tobytes()
        tensor = {"name": self.input_name, "datatype": "FP32", "shape": x.shape}
        tensor["parameters"] = {"binary_data_size": len(data)}
        text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        return x, text + data, {"Inference-Header-Content-Length": str(len(text))}

    def post(
        self,
        path: str,
        body: bytes | None,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        under_way: Callable[[], None] | None = None,
    ) -> http.client.HTTPResponse:
        """An answer that is a success; `under_way` is called between request and answer. Raises Refused, OSError."""
        if self._connection is None:
            self._connection = self.world.http(self.port())
        try:
            self._connection.request(method, path, body, {**self.world.headers, **(headers or {})})
            if under_way is not None:
                under_way()
            response = self._connection.getresponse()
            if response.status != 200:
                raise Refused(f"{response.status} {reason(response.read())}")
        except http.client.HTTPException as error:
            raise ConnectionError(f"{error!r}") from error
        return response

    def infer_json(self, model: str, name: str, datatype: str, data: list[Any], **members: Any) -> Any:
        """The answer to one row of JSON. Raises as `post`."""
        tensor = {"name": name, "datatype": datatype, "shape": [1, len(data)], "data": data}
        body = json.dumps({"inputs": [tensor], **members}).encode()
        return json.loads(read(self.post(f"/v2/models/{model}/infer", body)))


def reason(body: bytes) -> str:
    """The words of an error, which before the first event of a stream may be an event themselves."""
    try:
        return str(json.loads(body.removeprefix(b"data: "))["error"])
    except (ValueError, KeyError):
        raise Wrong(f"an error without words: {body[:200]!r}") from None


def json_events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without the one that ends OpenAI's."""
    try:
        events = (event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event)
        return [json.loads(event) for event in events if event != b"[DONE]"]
    except ValueError:
        raise Wrong(f"no events: ... {body[-200:]!r}") from None


def require_success(events: list[dict[str, Any]]) -> None:
    """Raises Refused if a stream ended with an error."""
    if events and "error" in events[-1]:
        raise Refused(f"in a stream: {events[-1]['error']}")


def read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"{error!r}") from error


class Binary(HttpClient):
    """Tensors behind JSON. What `model` answers is `factor` times the tensor and `more`."""

    model, factor, more = "works", 2.0, 1.0

    def ask(self) -> None:
        x, body, headers = self.request()
        response = self.post(f"/v2/models/{self.model}/infer", body, headers)
        answer = read(response)
        y = np.frombuffer(answer[int(response.headers["Inference-Header-Content-Length"]) :], np.float32)
        if not np.array_equal(y, self.factor * x[0] + self.more):
            raise Wrong(f"{self.model}({x[0, 0]:.0f} x {x.size}) = {y[:3]} x {y.size}")


class Calls(Binary):
    """The same through a model that calls the other."""

    model, factor, more = "calls", -2.0, -1.0


class Chains(Binary):
    """The same through an ensemble of two steps."""

    model, factor, more = "chain", 4.0, 3.0


class Forks(Binary):
    """Through an ensemble that hands its tensor to two steps, one of which calls a model, and joins what they make."""

    model, factor, more = "fork", 4.0, 2.0


class Json(HttpClient):
    def ask(self) -> None:
        x = [self.random.randrange(1 << 20) for _ in range(self.random.choice([1, 8, 2000]))]
        answer = self.infer_json("works", "X", "FP32", x, id=self.name)
        if answer["outputs"][0]["data"] != [2 * value + 1 for value in x] or answer["id"] != self.name:
            raise Wrong(f"works({x[:3]} x {len(x)}) = {str(answer)[:200]}")


class Sums(HttpClient):
    """Sequences; the answer to each step is the sum of all so far."""

    model = "sums"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps = Steps(self.name if seed % 2 else 1000 + seed, seed)

    def ask(self) -> None:
        value, begins, ends = self.steps.next()
        answer = self.infer_json(self.model, "X", "INT32", [value], parameters=self.steps.parameters(begins, ends))
        self.steps.check(answer["outputs"][0]["data"][0])


class Keeps(Sums):
    """The same with implicit state, and the oldest strategy."""

    model = "keeps"


class Events(HttpClient):
    """generate_stream: the events are N, N - 1, ... 1 times `factor`, or end with an error."""

    model, factor = "counts", 1

    def ask(self) -> None:
        n = self.random.choice([1, 5, 300])
        response = self.post(f"/v2/models/{self.model}/generate_stream", json.dumps({"N": n}).encode())
        events = json_events(read(response))
        values = [self.factor * event["Y"] for event in events if "Y" in event]
        if values != list(range(n, n - len(values), -1)):
            raise Wrong(f"{self.model}({n}) = {values[:10]} x {len(values)}")
        require_success(events)
        if len(values) != n:
            raise Wrong(f"{self.model}({n}) ended after {len(values)} without an error")


class CountedEvents(Events):
    """The same through an ensemble behind a model that streams."""

    model, factor = "counted", -1


class Vanishing(HttpClient):
    """Goes away in the middle of its request, or of the answer."""

    tensor_models: tuple[str, ...] = ("works", "calls")
    streaming = "counts"

    def ask(self) -> None:
        _, body, headers = self.request()
        model = self.random.choice([*self.tensor_models, self.streaming])
        path = f"/v2/models/{model}/{'generate_stream' if model == self.streaming else 'infer'}"
        if model == self.streaming:
            body, headers = b'{"N":5000}', {}
        lines = [f"POST {path} HTTP/1.1", "Host: chaos", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in {**self.world.headers, **headers}.items()]
        data = "\r\n".join([*lines, "\r\n"]).encode() + body
        with self.world.connect(self.world.http_port) as connection:
            connection.sendall(data[: self.random.choice([10, 500, len(data) // 2, len(data), len(data)])])
            connection.settimeout(self.random.choice([0.001, 0.01, 0.1]))
            with contextlib.suppress(TimeoutError):
                connection.recv(self.random.choice([1, 10_000]))


class VanishingChains(Vanishing):
    """From the middle of a pipeline."""

    tensor_models, streaming = ("chain", "fork"), "counted"
