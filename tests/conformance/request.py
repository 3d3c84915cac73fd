"""What a case sends: requests as data, and short builders for the usual kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# It only ends a wait for a server that never answers, so a busy machine may need long without a difference.
DEFAULT_TIMEOUT_S = 15.0
# Those of `pb_utils.TritonError`, in the order of their numbers.
ERROR_CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


@dataclass(frozen=True)
class Exchange:
    """One connection: bytes to send (in parts), and the methods of the requests they hold."""

    parts: tuple[bytes, ...]
    methods: tuple[str, ...]
    timeout: float = DEFAULT_TIMEOUT_S
    expect_close: bool = False


@dataclass(frozen=True)
class Concurrent:
    """Several exchanges at once, one connection each."""

    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Rpc:
    """One gRPC call: serialized messages for a method, given as its full path.

    stream: whether the method takes and gives streams; else ``messages`` is one.
    metadata: sent with the call; ``compression`` names how its messages are packed.
    deadline: what the server is told to keep to, in seconds; ``timeout`` is when the client gives up by itself.
    one_by_one: each message of a stream waits for an answer to the one before; else all are sent at once.
    cancel_after: the client cancels when it has read that many messages.
    """

    method: str
    messages: tuple[bytes, ...]
    stream: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    compression: str = ""
    timeout: float = DEFAULT_TIMEOUT_S
    deadline: float | None = None
    one_by_one: bool = False
    cancel_after: int | None = None


@dataclass(frozen=True)
class Frames:
    """One connection to the gRPC port: bytes to send, and a good call behind them unless ``call_behind`` is False.

    ends: how many other streams must have ended, too, before the answer is complete.
    """

    data: bytes
    call_behind: bool = True
    ends: int = 0
    timeout: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True)
class Put:
    """Changes the server's repository: ``path`` becomes this file or folder (files by path), all at once, or goes."""

    path: str
    content: str | dict[str, str] | None


@dataclass(frozen=True)
class Until:
    """Repeats an exchange until its answer has this status and contains ``text`` but not ``without``.

    Blanks in a body do not count. Compared is the last answer, which after ``timeout`` is whatever there is.
    """

    exchange: Exchange
    text: str = ""
    without: str = ""
    status: int = 200
    timeout: float = 20.0


Step = Exchange | Concurrent | Rpc | Frames | Put | Until


@dataclass(frozen=True)
class Case:
    """One thing both servers must do alike.

    name: ``topic/what``, unique; the topic groups the summary.
    stats: a model whose statistics must move by the same counts while the steps run.
    pick: for a case about one model of a long list: only the entry with this ``name`` of a JSON array is compared.
    server: which of the two started servers it needs (see servers.py).
    """

    name: str
    steps: tuple[Step, ...]
    note: str = ""
    stats: str = ""
    pick: str = ""
    server: str = "serving"

    @property
    def topic(self) -> str:
        return self.name.partition("/")[0]


def case(name: str, *steps: Step, note: str = "", stats: str = "", pick: str = "", server: str = "serving") -> Case:
    return Case(name, steps, note, stats, pick, server)


def encode(method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """A well-formed request. Content-Length is added unless ``headers`` frames the body already."""
    given = headers or {}
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in given.items()]
    framed = any(name.lower() in ("content-length", "transfer-encoding") for name in given)
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def send(
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    expect_close: bool = False,
) -> Exchange:
    data = body.encode() if isinstance(body, str) else body
    return Exchange((encode(method, path, data, headers),), (method,), timeout, expect_close)


def raw(
    *parts: bytes, methods: tuple[str, ...] = ("POST",), timeout: float = DEFAULT_TIMEOUT_S, expect_close: bool = False
) -> Exchange:
    return Exchange(parts, methods, timeout, expect_close)


def get(path: str, headers: dict[str, str] | None = None) -> Exchange:
    return send("GET", path, None, headers)


def post(path: str, body: bytes | str = b"", headers: dict[str, str] | None = None) -> Exchange:
    return send("POST", path, body, headers)


def infer(
    model: str,
    body: dict[str, Any] | str | bytes,
    payload: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> Exchange:
    """An inference request; with ``payload`` (may be empty) the body has a binary part and the header that says so."""
    text = json.dumps(body, separators=(",", ":")) if isinstance(body, dict) else body
    data = text.encode() if isinstance(text, str) else text
    given = dict(headers or {})
    if payload is not None:
        given.setdefault("Inference-Header-Content-Length", str(len(data)))
        data += payload
    return send("POST", f"/v2/models/{model}/infer", data, given, timeout)


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """The JSON of one input; ``data`` or ``parameters`` (``binary_data_size=...``) as the case needs."""
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        entry["parameters"] = parameters
    if data is not None:
        entry["data"] = data
    return entry


def bytes_blob(*elements: bytes) -> bytes:
    """BYTES elements as the binary extension carries them: 4-byte little-endian length, then the bytes."""
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def evaluate(expression: str) -> Exchange:
    """Evaluates a Python expression inside the stub; models/evaluate.py says with which names."""
    return infer("evaluate", {"inputs": [tensor("EXPRESSION", "BYTES", [1], [expression])]})


def outcome_class(expression: str) -> str:
    """An expression for the class alone of what another raises or gives, where the texts are not compared."""
    return f"class_of(lambda: {expression})"


def evaluations(topic: str, expressions: dict[str, str], server: str = "serving") -> tuple[Case, ...]:
    """One case per named expression."""
    return tuple(
        case(f"{topic}/{name}", evaluate(expression), server=server) for name, expression in expressions.items()
    )
