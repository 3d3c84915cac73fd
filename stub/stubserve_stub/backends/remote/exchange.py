"""Requests to another server with KServe's protocol v2: connections that are kept, and tensors as binary data.

- A connection is kept for the next request. One that the server has closed meanwhile is not used.
- A request that may have reached a server is never sent again. Of several addresses the next one is taken only where no
  connection can be made.
- Tensors are sent from where they lie. A large answer is read into the arena, where it counts as other memory does, as
  its bytes arrive, and its tensors lie there.
"""

from __future__ import annotations

import collections
import contextlib
import json
import ssl
import threading
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import urlsplit

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.remote.connection import Address, Call, Connection, Unanswered
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, DataType, elements_of, nbytes_of

LENGTH = "Inference-Header-Content-Length"
_LENGTH_FIELD = LENGTH.lower().encode()
_CODES = {400: codes.INVALID_ARG, 404: codes.NOT_FOUND, 501: codes.UNSUPPORTED, 503: codes.UNAVAILABLE}

# Descriptions of models, and the JSON in front of an answer's binary data
JSON_BYTES = 1 << 20
# An answer all in JSON, as from a server without binary data
ALL_JSON_BYTES = 64 << 20
# What an element takes there, at most
ELEMENT_BYTES = 32
_ERROR_BYTES, _ERROR_CHARACTERS = 64 << 10, 4096
# Shorter bodies do not lie in the arena. Longer ones get so much at first, and then twice as much.
_SMALL_BYTES, _FIRST_BYTES = 64 << 10, 16 << 20


class Body:
    """Memory for a body of at most `most` bytes: with a channel in the arena, unless it is short."""

    def __init__(self, most: int, channel: Optional[Channel] = None) -> None:
        self._most = most
        self._channel = channel
        self._offset: Optional[int] = None
        self._memory = memoryview(b"")

    def room(self, used: int, announced: int) -> memoryview:
        """As `connection.Room`. Raises ArenaFull."""
        if announced > self._most:
            raise Unanswered(f"its answer has more than the {self._most} bytes that it may have")
        if not announced:
            return self._memory
        nbytes = min(max(announced, 2 * used, 4096), max(2 * used, _FIRST_BYTES), self._most)
        before, offset = self._memory, self._offset
        if self._channel is None or nbytes <= _SMALL_BYTES:
            self._memory = memoryview(bytearray(nbytes))
        else:
            self._offset = self._channel.memory.reserve(nbytes)
            self._memory = self._channel.arena.view(self._offset, nbytes)
        self._memory[:used] = before[:used]
        self._free(offset)
        return self._memory

    def close(self) -> None:
        """Nobody reads it any more."""
        offset, self._offset = self._offset, None
        self._free(offset)

    def _free(self, offset: Optional[int]) -> None:
        if offset is not None:
            assert self._channel is not None
            self._channel.memory.free([offset])


class Reply(NamedTuple):
    status: int
    body: memoryview
    header_length: int

    @property
    def error(self) -> Tuple[str, int]:
        """The text and the code of an answer that is an error."""
        try:
            text = json.loads(bytes(self.body))["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = bytes(self.body[:200]).decode("utf-8", "replace") or f"status {self.status}"
        return str(text)[:_ERROR_CHARACTERS], _CODES.get(self.status, codes.INTERNAL)


class Server:
    """The server behind one address, or behind several with the same models. Safe on any thread.

    `headers` go with each request. Raises Refusal for an address that is none.
    """

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str]) -> None:
        self._addresses = [_address(url) for url in urls]
        # Made once: it reads the certificates of the system
        self._tls = ssl.create_default_context() if any(secure for secure, _, _ in self._addresses) else None
        self._headers = headers
        self._guard = threading.Lock()
        self._idle: Deque[Connection] = collections.deque()
        self.name = ", ".join(urls)

    def ask(
        self,
        call: Call,
        body: Body,
        method: str,
        path: str,
        parts: Sequence[Any] = (),
        headers: Optional[Mapping[str, str]] = None,
    ) -> Reply:
        """One request, and its answer in `body`. Raises Unanswered, OSError, ArenaFull."""
        connection = self._connection(call)
        try:
            length = sum(memoryview(part).nbytes for part in parts)
            fields = {"Host": connection.host, **self._headers, **(headers or {}), "Content-Length": str(length)}
            lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            sent = ["\r\n".join(lines).encode("latin-1", "replace"), *parts]
            # In one packet, where that is possible
            connection.send(call, sent if length > _SMALL_BYTES else [b"".join(sent)])
            head = connection.head(call)
            if head.status == 200:
                reply = Reply(200, connection.body(call, head, body.room), head.number(_LENGTH_FIELD))
            else:
                error = Body(_ERROR_BYTES)
                reply = Reply(head.status, connection.body(call, head, error.room), 0)
        except BaseException:
            connection.close(call)
            raise
        call.use(None)
        if head.keeps:
            with self._guard:
                self._idle.append(connection)
        else:
            connection.close(call)
        return reply

    def _connection(self, call: Call) -> Connection:
        while True:
            with self._guard:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.fresh:
                return connection
            connection.close(call)
        problems = []
        for address in self._addresses:
            try:
                return Connection(call, address, self._tls)
            except Unanswered as problem:
                problems.append(str(problem))
        raise Unreached("; ".join(problems))


class Unreached(Unanswered):
    """No address could be connected to."""


def _address(url: str) -> Address:
    """(whether it is TLS, host, port)"""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        # Not with the address: clients may see why a load fails.
        raise Refusal("parameter 'url' has a user or a password, which would not be used: token_file names a token")
    plain = not (parts.path.strip("/") or parts.query or parts.fragment) and url.isascii() and url.isprintable()
    try:
        port = parts.port
    except ValueError:
        port, plain = None, False
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise Refusal(f"parameter 'url' must be like http://host:8000, or several of these with commas, got '{url}'")
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 8000)


def encoded(tensors: Sequence[Tensor], outputs: Sequence[str], members: Mapping[str, Any]) -> Tuple[List[Any], int]:
    """The parts of a request's body, and the length of its JSON in front; `members` are the other ones of that."""
    described, parts = [], []
    for tensor in tensors:
        datatype, shape, payload = tensor._payload()
        memory: Any = payload
        part = memoryview(memory).cast("B") if memoryview(memory).nbytes else b""
        size = {"binary_data_size": memoryview(part).nbytes}
        name = BY_NUMBER[datatype].name
        described.append({"name": tensor.name(), "shape": list(shape), "datatype": name, "parameters": size})
        parts.append(part)
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps({**members, "inputs": described, "outputs": wanted}).encode()
    return [head, *parts], len(head)


# One answer of much JSON, or of many strings, is taken apart at a time: it takes many times its size.
_taking_apart = threading.Lock()


def decoded(reply: Reply, wanted: Mapping[str, DataType], all_json: int) -> Tuple[List[Tensor], Dict[str, Any]]:
    """The outputs of an answer, over its body, and its parameters.

    `wanted` are those that were asked for, `all_json` is how long an answer may be that is all JSON. Raises Unanswered
    for one that is none.
    """
    length = reply.header_length
    if length > len(reply.body) or length > JSON_BYTES or (not length and len(reply.body) > all_json):
        raise Unanswered("the JSON of its answer is longer than the answer, or than it may be")
    length = length or len(reply.body)
    with _taking_apart if len(reply.body) > JSON_BYTES else contextlib.nullcontext():
        try:
            document = json.loads(bytes(reply.body[:length]))
            tensors: Dict[str, Tensor] = {}
            for output in document["outputs"]:
                name = output["name"]
                if name not in wanted or name in tensors:
                    raise Unanswered("it has answered with an output twice, or with one that nobody asked for")
                size = (output.get("parameters") or {}).get("binary_data_size")
                part = None
                if size is not None:
                    part = reply.body[length : length + _natural(size)]
                    length += size
                tensors[name] = _tensor(output, wanted[name], part, size)
            parameters = dict(document.get("parameters") or {})
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise Unanswered(f"what it sends is no answer: {type(error).__name__}") from None
    if length != len(reply.body):
        raise Unanswered("its answer is longer or shorter than its outputs")
    return list(tensors.values()), parameters


def _tensor(output: Mapping[str, Any], kind: DataType, part: Optional[memoryview], size: Optional[int]) -> Tensor:
    """An output, over its part of the body or else with the elements that came as JSON. Raises as `decoded`."""
    name, shape = output["name"], [_natural(dim) for dim in output["shape"]]
    if output["datatype"] != kind.name:
        raise Unanswered(f"output '{name}' is {kind.name}, and it has answered with another data type")
    if part is None:
        return _listed(name, kind, shape, output["data"])
    if kind.number == BYTES:
        try:
            fits = len(part) == size and len(bytes_tensor.decode(part)) == elements_of(shape)
        except TritonModelException:
            fits = False
    else:
        fits = len(part) == size == nbytes_of(kind.number, shape)
    if not fits:
        raise Unanswered(f"the bytes of output '{name}' do not fit its shape")
    return Tensor._received(name, kind.number, shape, None if len(part) else b"", part)


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError
    return number


def _listed(name: str, kind: DataType, shape: Sequence[int], elements: Any) -> Tensor:
    if kind.number == BYTES:
        flat = np.array(elements, object).reshape(-1).tolist()
        if not all(type(element) is str for element in flat):
            raise TypeError
        return Tensor(name, bytes_tensor.object_array([element.encode() for element in flat]).reshape(shape))
    array = np.array(elements)
    integers = "b" if kind.number == BOOL else "iu"
    expected = integers + "f" if kind.numpy is not None and kind.numpy.kind == "f" else integers
    if kind.number == BF16 or (array.size and array.dtype.kind not in expected):
        raise TypeError
    return Tensor(name, np.array(elements, kind.numpy).reshape(shape))
