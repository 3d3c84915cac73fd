"""Requests as people send them: no two are alike, and no header, shape, text or id is spelled the same way each time.

A pool of them is made once from a seed, so that every server and every run gets the same. It is large enough that what
a server remembers of whole requests, or of whole JSON headers, helps it nowhere.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tritonclient.grpc import service_pb2

from .payloads import JSON_LENGTH_HEADER, WrongAnswerError

T = TypeVar("T")

POOL = 4096
SEED = 13

DATATYPES = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}

# With what means something in JSON, and what has to be escaped there
ENGLISH = ["the", "quick:", "brown", "{fox}", "[jumps]", "over,", "lazy", "dogs'", '"tails"', "1,5", "back\\slashes"]
# What takes two, three and four bytes a character
OTHERS = ["naïve", "œuvre", "Straße", "Ελλάδα", "привет", "東京", "🚀", "👍🏽", "€"]


@dataclass(frozen=True)
class Tensor:
    """A named tensor. Strings are a flat list of texts."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Any

    @property
    def raw(self) -> bytes:
        """The binary form. Only numbers are sent so."""
        raw: bytes = self.values.tobytes()
        return raw

    @property
    def listed(self) -> list[Any]:
        """The values as JSON has them, flat."""
        return self.values if isinstance(self.values, list) else list(self.values.ravel().tolist())

    def named(self, name: str) -> Tensor:
        return Tensor(name, self.datatype, self.shape, self.values)


@dataclass(frozen=True)
class VariedRequest:
    """One HTTP request, every byte of it, and the outputs that its answer must carry."""

    raw: bytes
    outputs: Sequence[Tensor]
    generates: bool = False

    def send(self, port: int) -> None:
        """Sends it once to 127.0.0.1:`port`. Raises WrongAnswerError unless the answer is right."""
        body, length = self.exchange(port)
        answer = json.loads(body if length is None else body[: int(length)])
        if self.generates:
            right = [answer.get(output.name) for output in self.outputs] == [one.listed[0] for one in self.outputs]
        else:
            right = self._is_right(answer["outputs"], b"" if length is None else body[int(length) :])
        if not right:
            raise WrongAnswerError(f"the answer is not what was sent: {body[:500]!r}, after {self.raw[:500]!r}")

    def exchange(self, port: int) -> tuple[bytes, str | None]:
        """The body of the answer and the length of its JSON, if it says so. Raises WrongAnswerError for an error."""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(self.raw)
            response = http.client.HTTPResponse(connection)
            response.begin()
            body = response.read()
        if response.status != 200:
            raise WrongAnswerError(f"status {response.status}: {body[:500]!r}, after {self.raw[:500]!r}")
        return body, response.headers.get(JSON_LENGTH_HEADER)

    def _is_right(self, answered: list[dict[str, Any]], binary: bytes) -> bool:
        found = {}
        for output in answered:
            nbytes = output.get("parameters", {}).get("binary_data_size", 0)
            found[output["name"]] = output["datatype"], tuple(output["shape"]), output.get("data", binary[:nbytes])
            binary = binary[nbytes:]
        for output in self.outputs:
            datatype, shape, data = found.pop(output.name, ("", (), None))
            if (datatype, shape) != (output.datatype, output.shape):
                return False
            if data != (output.raw if isinstance(data, bytes) else output.listed):
                return False
        return not found


@dataclass(frozen=True)
class VariedCall:
    """One gRPC request, and the outputs that its answer must carry."""

    request: service_pb2.ModelInferRequest
    outputs: Sequence[Tensor]

    def check(self, answer: service_pb2.ModelInferResponse) -> None:
        """Raises WrongAnswerError unless the answer is right."""
        found = {
            output.name: (output.datatype, tuple(output.shape), raw)
            for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }
        if found != {output.name: (output.datatype, output.shape, output.raw) for output in self.outputs}:
            raise WrongAnswerError(f"the answer is not what was sent: {answer}, after {self.request}")


@dataclass(frozen=True)
class Step:
    """One request of a sequence, and what all that it has sent adds up to."""

    sequence: int | str
    start: bool
    end: bool
    value: int
    sum: int

    @property
    def output(self) -> Tensor:
        return Tensor("OUT", "INT32", (1, 1), np.array([[self.sum]], np.int32))

    @property
    def raw(self) -> bytes:
        return np.int32(self.value).tobytes()


class Variety:
    """A seeded source of requests. Every method makes one request, the next one another."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed)

    def pool(self, make: Callable[[], T]) -> list[T]:
        """As many as are sent in turn."""
        return [make() for _ in range(POOL)]

    def one_of(self, models: Sequence[str]) -> str:
        return self._random.choice(models)

    # What is sent

    def binary(self, model: str) -> VariedRequest:
        """Two or three inputs in the binary form; in some, only some outputs are requested."""
        inputs = self._mixed()
        wanted = self._wanted(inputs)
        raw = b"".join(tensor.raw for tensor in inputs)
        header = {
            "inputs": [self._described(one, parameters={"binary_data_size": len(one.raw)}) for one in inputs],
            **self._asked(wanted),
        }
        return self._post(f"/v2/models/{model}/infer", header, wanted or _mirrored(inputs), raw)

    def floats(self, model: str, largest: int = 64) -> VariedRequest:
        """One input of up to `largest` floats in the binary form, as calls between models are sent."""
        tensor = self._numbers("NUMBERS", "FP32", (1, self._random.randint(1, largest)))
        header = {
            "inputs": [self._described(tensor, parameters={"binary_data_size": len(tensor.raw)})],
            "parameters": {"binary_data_output": True},
        }
        return self._post(f"/v2/models/{model}/infer", header, _mirrored([tensor]), tensor.raw)

    def json_numbers(self, model: str) -> VariedRequest:
        """Up to 64 floats as JSON numbers, integers and fractions mixed."""
        tensor = self._numbers("NUMBERS", "FP32", (1, self._random.randint(1, 64)))
        data = [int(value) if value.is_integer() else value for value in tensor.listed]
        header = {"inputs": [self._described(tensor, data=data)]}
        return self._post(f"/v2/models/{model}/infer", header, _mirrored([tensor]))

    def json_texts(self, model: str, count: int) -> VariedRequest:
        """`count` texts of 3 to 300 characters."""
        tensor = Tensor("TEXTS", "BYTES", (1, count), [self._text() for _ in range(count)])
        header = {"inputs": [self._described(tensor, data=tensor.listed)]}
        return self._post(f"/v2/models/{model}/infer", header, _mirrored([tensor]))

    def json_flags(self, model: str) -> VariedRequest:
        """Arrays of booleans and of integers."""
        inputs = [
            self._numbers(name, datatype, (1, self._random.randint(1, 64)))
            for name, datatype in (("FLAGS", "BOOL"), ("COUNTS", "INT64"))
        ]
        header = {"inputs": [self._described(tensor, data=tensor.listed) for tensor in inputs]}
        return self._post(f"/v2/models/{model}/infer", header, _mirrored(inputs))

    def generate(self, model: str) -> VariedRequest:
        """One text to `generate`."""
        tensor = Tensor("TEXTS", "BYTES", (1, 1), [self._text()])
        return self._post(
            f"/v2/models/{model}/generate", {"TEXTS": tensor.listed[0]}, _mirrored([tensor]), generates=True
        )

    def grpc(self, model: str) -> VariedCall:
        """As `binary`, with raw contents."""
        inputs = self._mixed()
        request = service_pb2.ModelInferRequest(model_name=model, id=self._id())
        for tensor in inputs:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(tensor.raw)
        wanted = self._wanted(inputs)
        for output in wanted:
            request.outputs.add(name=output.name)
        return VariedCall(request, wanted or _mirrored(inputs))

    # Sequences

    def sequence_ids(self, count: int, texts: bool) -> list[int | str]:
        """Different ids, half of them texts where these are wanted."""
        ids: list[int | str] = [*self._random.sample(range(1, 2**62), count)]
        if texts:
            ids[::2] = [f"caller-{number:x}"[: self._random.randint(12, 23)] for number in ids[::2]]
        return ids

    def step(self, sequence: int | str, start: bool, end: bool, before: int) -> Step:
        """The next request of a sequence that has sent `before` altogether."""
        value = self._random.randint(1, 1000)
        return Step(sequence, start, end, value, before + value)

    def posted_step(self, model: str, step: Step) -> VariedRequest:
        parameters: dict[str, Any] = {"sequence_id": step.sequence, "binary_data_output": True}
        if step.start or self._random.random() < 0.5:
            parameters["sequence_start"] = step.start
        if step.end or self._random.random() < 0.5:
            parameters["sequence_end"] = step.end
        tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
        header = {"inputs": [self._shuffled(tensor)], "parameters": self._shuffled(parameters)}
        return self._post(f"/v2/models/{model}/infer", header, [step.output], step.raw)

    def streamed_step(self, model: str, step: Step) -> service_pb2.ModelInferRequest:
        """As `posted_step`, with an id that no other has."""
        message = service_pb2.ModelInferRequest(model_name=model, id=f"{self._random.getrandbits(64):x}")
        if isinstance(step.sequence, str):
            message.parameters["sequence_id"].string_param = step.sequence
        else:
            message.parameters["sequence_id"].int64_param = step.sequence
        message.parameters["sequence_start"].bool_param = step.start
        message.parameters["sequence_end"].bool_param = step.end
        message.inputs.add(name="IN", datatype="INT32", shape=[1, 1])
        message.raw_input_contents.append(step.raw)
        return message

    # What it is made of

    def _mixed(self) -> list[Tensor]:
        batch = self._random.randint(1, 8)
        inputs = [
            self._numbers(name, datatype, (batch, self._random.randint(1, 64)))
            for name, datatype in (("A", "FP32"), ("B", "INT32"), ("C", "FP32"))[: self._random.choice((2, 3))]
        ]
        self._random.shuffle(inputs)
        return inputs

    def _wanted(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs that a request names; none where it takes all."""
        if self._random.random() < 0.5:
            return []
        return _mirrored(self._random.sample(inputs, self._random.randint(1, len(inputs))))

    def _asked(self, wanted: Sequence[Tensor]) -> dict[str, Any]:
        if not wanted:
            return {"parameters": {"binary_data_output": True}}
        return {"outputs": [{"name": output.name, "parameters": {"binary_data": True}} for output in wanted]}

    def _numbers(self, name: str, datatype: str, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape))
        if datatype == "BOOL":
            values: list[Any] = [self._random.random() < 0.5 for _ in range(count)]
        elif datatype == "FP32":
            values = [
                self._random.randrange(-(10**6), 10**6) / self._random.choice((1, 2, 4, 1024)) for _ in range(count)
            ]
        else:
            values = [self._random.randrange(-(2**31), 2**31) for _ in range(count)]
        return Tensor(name, datatype, shape, np.array(values, DATATYPES[datatype]).reshape(shape))

    def _text(self) -> str:
        length = self._random.randint(3, 300)
        vocabulary = ENGLISH if self._random.random() < 0.7 else ENGLISH + OTHERS
        return " ".join(self._random.choices(vocabulary, k=length // 3))[:length].ljust(3, ".")

    def _id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"[: self._random.randint(6, 16)]

    def _described(self, tensor: Tensor, **more: Any) -> dict[str, Any]:
        return self._shuffled({"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), **more})

    def _shuffled(self, members: dict[str, Any]) -> dict[str, Any]:
        return dict(self._random.sample(list(members.items()), len(members)))

    def _post(
        self, path: str, header: dict[str, Any], outputs: Sequence[Tensor], binary: bytes = b"", generates: bool = False
    ) -> VariedRequest:
        members = self._shuffled({"id": self._id(), **header})
        separators = self._random.choice([(", ", ": "), (",", ":")])
        text = json.dumps(members, ensure_ascii=self._random.random() < 0.5, separators=separators).encode()
        lines = [
            ("Host", "127.0.0.1"),
            ("Content-Length", str(len(text) + len(binary))),
            ("Content-Type", "application/octet-stream" if binary else "application/json"),
            ("User-Agent", self._random.choice(["python-requests/2.32.3", "Go-http-client/1.1", "okhttp/4.12.0"])),
            ("Accept", "*/*"),
        ]
        if binary:
            lines.append((JSON_LENGTH_HEADER, str(len(text))))
        self._random.shuffle(lines)
        spell = self._random.choice([str.lower, str.title, str])
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{spell(name)}: {value}\r\n" for name, value in lines)
        return VariedRequest(head.encode() + b"\r\n" + text + binary, outputs, generates)


def _mirrored(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a model that returns its inputs under names of their own."""
    return [tensor.named(f"OUT_{tensor.name}") for tensor in inputs]
