"""Request bodies in the KServe v2 form, and the check that an answer carries the right values."""

from __future__ import annotations

import enum
import http.client
import json
import struct
from array import array
from dataclasses import dataclass, replace

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"


class WrongAnswerError(Exception):
    """A server answered, but not with what the model computes."""


class Form(enum.Enum):
    """What the tensor holds and how it travels where the protocol leaves a choice."""

    FLOATS = "FP32 as bytes"
    JSON = "FP32 as JSON numbers"
    STRINGS = "strings"


@dataclass(frozen=True)
class Sample:
    """What is sent, in no protocol yet: `count` values for one of the models, over `connections` at a time."""

    model: str
    form: Form
    count: int
    connections: int


@dataclass(frozen=True)
class Payload:
    """One inference request, ready to be sent again and again.

    `echo` is the tensor as the answer must carry it: raw bytes in the binary form, numbers in the JSON form. For most
    models it is what was sent.
    """

    model: str
    headers: dict[str, str]
    body: bytes
    echo: bytes | list[float]

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    @property
    def shortest_answer(self) -> int:
        """Bytes that any right answer has at least: the tensor itself, in JSON the digits and a comma each."""
        return len(self.echo) if isinstance(self.echo, bytes) else sum(len(repr(value)) + 1 for value in self.echo)

    def check(self, body: bytes, json_length: str | None) -> None:
        """Raises WrongAnswerError unless `body`, with this JSON length in its head, carries the tensor as OUTPUT0."""
        if isinstance(self.echo, bytes):
            if json_length is None:
                raise WrongAnswerError(f"{self.path}: no {JSON_LENGTH_HEADER} header in the answer to a binary request")
            text, raw = body[: int(json_length)], body[int(json_length) :]
            right = raw == self.echo
        else:
            text = body
            right = json.loads(text)["outputs"][0].get("data") == self.echo
        if not right or json.loads(text)["outputs"][0]["name"] != "OUTPUT0":
            raise WrongAnswerError(f"{self.path}: the answer is not what was sent: {text[:300]!r}")


def kserve(sample: Sample) -> Payload:
    """`sample` as a KServe v2 request."""
    makers = {Form.FLOATS: numbers, Form.JSON: json_numbers, Form.STRINGS: strings}
    return makers[sample.form](sample.model, sample.count)


def numbers(model: str, count: int) -> Payload:
    """`count` FP32 values as one vector, in the binary form in both directions."""
    return _binary(model, "FP32", count, float_bytes(count))


def distinct(model: str, count: int, number: int, factor: int) -> Payload:
    """As `numbers`, with an id and values that no other `number` has. Its answer is `factor` times the values."""
    values = array("f", (float((i + number) % 1000) for i in range(count)))
    answer = array("f", (factor * value for value in values))
    payload = _binary(model, "FP32", count, values.tobytes(), f"request-{number:04}")
    return replace(payload, echo=answer.tobytes())


def strings(model: str, count: int) -> Payload:
    """`count` strings of 12 bytes as one vector, in the binary form in both directions."""
    return _binary(model, "BYTES", count, b"".join(struct.pack("<I12s", 12, text) for text in texts(count)))


def json_numbers(model: str, count: int) -> Payload:
    """`count` FP32 values as one vector of JSON numbers in both directions."""
    values = halves(count)
    tensor = {"name": "INPUT0", "shape": [1, count], "datatype": "FP32", "data": values}
    body = json.dumps({"inputs": [tensor]}).encode()
    return Payload(model, {"Content-Type": "application/json"}, body, values)


def float_bytes(count: int) -> bytes:
    return array("f", (float(i % 1000) for i in range(count))).tobytes()


def texts(count: int) -> list[bytes]:
    return [b"element %04d" % i for i in range(count)]


def halves(count: int) -> list[float]:
    """Values that FP32 holds exactly, so that they come back as they went."""
    return [i + 0.5 for i in range(count)]


def _binary(model: str, datatype: str, count: int, raw: bytes, request_id: str = "") -> Payload:
    request = {
        **({"id": request_id} if request_id else {}),
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1, count],
                "datatype": datatype,
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(request).encode()
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH_HEADER: str(len(text))}
    return Payload(model, headers, text + raw, raw)


def send(port: int, payload: Payload) -> None:
    """Sends `payload` once to 127.0.0.1:`port`; raises WrongAnswerError unless the answer is right."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", payload.path, payload.body, payload.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise WrongAnswerError(f"{payload.path}: status {response.status}: {body[:500]!r}")
        payload.check(body, response.headers.get(JSON_LENGTH_HEADER))
    finally:
        connection.close()
