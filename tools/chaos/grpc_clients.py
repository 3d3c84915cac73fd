"""Clients over gRPC: unary calls, streams, and streams that are reset."""

from __future__ import annotations

import contextlib
import queue
import random
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tools.bench.http2_client import PING, PREFACE, RST_STREAM, SETTINGS, UINT32, call, frame

from .http_clients import SIZES
from .world import ANSWER_WITHIN_S, HOST, Client, Refused, Steps, World, Wrong

# How a call ends that was under way when the server was.
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
PING_TEXT = b"chaotic!"
SERVERS_OWN = "Connection|connection|Socket|socket|GOAWAY|Stream removed|RST_STREAM|connect"


class GrpcClient(Client):
    """A channel of its own, made anew after every failure: grpcio waits ever longer before it connects again."""

    keeps_deadlines = True
    sizes: tuple[int, ...] = SIZES

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.random = random.Random(seed)
        self._channel: grpc.Channel | None = None

    def hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def stub(self) -> Any:
        if self._channel is None:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
            address = f"{HOST}:{self.world.grpc_port}"
            if self.world.trust is None:
                self._channel = grpc.insecure_channel(address, options)
            else:
                credentials = grpc.ssl_channel_credentials(self.world.authority)
                self._channel = grpc.secure_channel(address, credentials, options)
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @property
    def options(self) -> dict[str, Any]:
        """What each call is given beside its request."""
        return {"timeout": self.world.answer_within_s, "metadata": self.world.metadata}

    def tensor(self) -> np.ndarray:
        return np.full((1, self.random.choice(self.sizes)), self.random.randrange(1 << 20), np.float32)

    def ask(self) -> None:
        try:
            self.call()
        except grpc.RpcError as error:
            status, text = error.code(), str(error.details())
            if status is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(text) from None
            if status in LOST and any(word in text for word in SERVERS_OWN.split("|")):
                raise ConnectionError(text) from None
            raise Refused(f"{status.name} {text}") from None

    def call(self) -> None:
        """One call. Raises RpcError, Wrong, Refused."""
        raise NotImplementedError


def asking(model: str, name: str, array: np.ndarray, id: str = "") -> Any:
    """A request with one input, of FP32 or INT32."""
    request = service_pb2.ModelInferRequest(model_name=model, id=id)
    request.inputs.add(name=name, datatype="FP32" if array.dtype == np.float32 else "INT32", shape=array.shape)
    request.raw_input_contents.append(array.tobytes())
    return request


def counting(n: int, model: str = "counts") -> Any:
    request = asking(model, "N", np.array([n], np.int32), str(n))
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


class Unary(GrpcClient):
    """What `model` answers is `factor` times the tensor and `more`."""

    model, factor, more = "works", 2.0, 1.0
    input_name = "X"

    def call(self) -> None:
        x = self.tensor()
        answer = self.stub.ModelInfer(asking(self.model, self.input_name, x, self.name), **self.options)
        y = np.frombuffer(answer.raw_output_contents[0], np.float32)
        if not np.array_equal(y, self.factor * x[0] + self.more) or answer.id != self.name:
            raise Wrong(f"{self.model}({x[0, 0]:.0f} x {x.size}) = {y[:3]} x {y.size}")


class UnaryChains(Unary):
    """Through an ensemble of two steps."""

    model, factor, more = "chain", 4.0, 3.0


class Streams(GrpcClient):
    """Several requests on one stream; each counts down to its final response, or ends with an error."""

    model, factor = "counts", 1

    def call(self) -> None:
        counts = [self.random.choice([1, 5, 300]) for _ in range(4)]
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = self.stub.ModelStreamInfer(iter(requests.get, None), **self.options)
        try:
            for n in counts:
                requests.put(counting(n, self.model))
                self._check(n, answers)
        finally:
            requests.put(None)
        for answer in answers:
            raise Wrong(f"behind all answers: {answer}")

    def _check(self, n: int, answers: Iterator[Any]) -> None:
        expected = n
        for answer in answers:
            if answer.error_message:
                raise Refused(f"in a stream: {answer.error_message}")
            response = answer.infer_response
            if response.raw_output_contents:
                y = int.from_bytes(response.raw_output_contents[0], "little", signed=True)
                if y != self.factor * expected or response.id != str(n):
                    raise Wrong(f"{self.model}({n}) = {response} where {self.factor * expected} was due")
                expected -= 1
            if response.parameters["triton_final_response"].bool_param:
                if expected:
                    raise Wrong(f"{self.model}({n}) ended at {expected}")
                return
        raise Refused("in a stream: it ended without an error")


class CountedStreams(Streams):
    """The same through an ensemble behind a model that streams."""

    model, factor = "counted", -1


class UnarySums(GrpcClient):
    """Sequences; the answer to each step is the sum of all so far."""

    model = "sums"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps = Steps(self.name if seed % 2 else 2000 + seed, seed)

    def step(self) -> Any:
        value, begins, ends = self.steps.next()
        request = asking(self.model, "X", np.array([[value]], np.int32))
        for name, given in self.steps.parameters(begins, ends).items():
            field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(given)]
            setattr(request.parameters[name], field, given)
        return request

    def check(self, response: Any) -> None:
        self.steps.check(int.from_bytes(response.raw_output_contents[0], "little", signed=True))

    def call(self) -> None:
        self.check(self.stub.ModelInfer(self.step(), **self.options))


class StreamedSums(UnarySums):
    """Some steps on each stream, so that sequences go on from one to the next."""

    model = "keeps"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps.id = self.name if seed % 2 else 3000 + seed

    def call(self) -> None:
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = self.stub.ModelStreamInfer(iter(requests.get, None), **self.options)
        try:
            for _ in range(self.random.choice([1, 4, 20])):
                requests.put(self.step())
                answer = next(answers, None)
                if answer is None or answer.error_message:
                    raise Refused(f"in a stream: {'it ended' if answer is None else answer.error_message}")
                self.check(answer.infer_response)
        finally:
            requests.put(None)


class Cancelling(Client):
    """Streams that are reset after some responses, on a connection that must live on.

    On a bare socket: a thread that asks grpcio for the next response while calls are cancelled around it may wait for
    ever, whatever the server does, past the call's deadline and the end of its connection.
    """

    model = "counts"

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.random = random.Random(seed)

    def requests(self) -> list[Any]:
        """What it asks on each of its streams."""
        return [counting(5000, self.model)]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self.world.metadata

    def ask(self) -> None:
        messages = [request.SerializeToString() for request in self.requests()]
        data = b"".join(b"\0" + UINT32.pack(len(message)) + message for message in messages)
        with self.world.connect(self.world.grpc_port, "h2") as connection:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
            connection.sendall(call(1, data, self.random.random() < 0.5, STREAM_INFER, self.metadata))
            wanted = self.random.choice([100, 1000, 20_000])
            # A stream that is refused brings less.
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                while wanted > 0 and (part := connection.recv(wanted)):
                    wanted -= len(part)
            connection.settimeout(ANSWER_WITHIN_S)
            connection.sendall(frame(RST_STREAM, 0, 1, UINT32.pack(8)) + frame(PING, 0, 0, PING_TEXT))
            seen = b""
            while PING_TEXT not in seen:
                part = connection.recv(1 << 16)
                if not part:
                    raise ConnectionError("the connection ended with the stream")
                seen = seen[-len(PING_TEXT) :] + part


class CancellingCounted(Cancelling):
    """The same through an ensemble behind a model that streams."""

    model = "counted"
