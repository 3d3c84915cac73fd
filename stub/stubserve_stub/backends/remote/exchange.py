"""Requests to another server, over HTTP with KServe's protocol v2: connections, and tensors as binary data.

- A connection is kept for the next request. One that the server has closed meanwhile is not used.
- A request that may have reached a server is never sent again. Of several addresses the next one is taken only where no
  connection can be made.
- Tensors are sent from where they lie. An answer is read into one buffer, over which its tensors lie.
"""

from __future__ import annotations

import collections
import http.client
import json
import select
import ssl
import threading
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER, BYTES, nbytes_of

LENGTH = "Inference-Header-Content-Length"
_CODES = {400: codes.INVALID_ARG, 404: codes.NOT_FOUND, 501: codes.UNSUPPORTED, 503: codes.UNAVAILABLE}
_Connection = Union[http.client.HTTPConnection, http.client.HTTPSConnection]
Body = Sequence[Any]


class Reply(NamedTuple):
    status: int
    body: memoryview
    header_length: int


class Server:
    """The server behind one address, or behind several with the same models. Safe on any thread.

    `headers` go with each request. Raises Refusal for an address that is none.
    """

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str], timeout_s: float) -> None:
        self._addresses = [_address(url) for url in urls]
        # Made once: it reads the certificates of the system
        self._tls = ssl.create_default_context() if any(secure for secure, _, _ in self._addresses) else None
        self._headers = headers
        self._timeout_s = timeout_s
        self._guard = threading.Lock()
        self._idle: Deque[_Connection] = collections.deque()
        self.name = ", ".join(urls)

    def ask(self, method: str, path: str, body: Body = (), headers: Optional[Mapping[str, str]] = None) -> Reply:
        """One request and its answer. Raises Refusal UNAVAILABLE where none comes."""
        connection = self._connection()
        length = sum(memoryview(part).nbytes for part in body)
        sent = {**self._headers, **(headers or {}), "Content-Length": str(length)}
        try:
            connection.request(method, path, iter(body), sent)
            answer = connection.getresponse()
            reply = Reply(answer.status, _read(answer), int(answer.getheader(LENGTH) or 0))
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise Refusal(f"{self.name} does not answer: {error or type(error).__name__}", codes.UNAVAILABLE) from None
        if answer.will_close:
            connection.close()
        else:
            with self._guard:
                self._idle.append(connection)
        return reply

    def _connection(self) -> _Connection:
        while True:
            with self._guard:
                if not self._idle:
                    break
                connection = self._idle.pop()
            # An idle connection that can be read has been closed by the server, or is of no use.
            if not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        problems = []
        for secure, host, port in self._addresses:
            made: _Connection
            if secure:
                made = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
            else:
                made = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            try:
                made.connect()
            except OSError as error:
                problems.append(str(error))
            else:
                return made
        raise Refusal(f"{self.name} cannot be reached: {'; '.join(problems)}", codes.UNAVAILABLE)


def _address(url: str) -> Tuple[bool, str, int]:
    """(whether it is TLS, host, port)"""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise Refusal(f"parameter 'url' must be like http://host:8000, or several of these with commas, got '{url}'")
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 8000)


def _read(answer: http.client.HTTPResponse) -> memoryview:
    """The body, in memory of its own. Raises HTTPException if it is cut off."""
    if answer.length is None:
        return memoryview(bytearray(answer.read()))
    body = memoryview(bytearray(answer.length))
    at = 0
    while at < len(body):
        count = answer.readinto(body[at:])
        if not count:
            raise http.client.IncompleteRead(bytes(body[:at]), len(body) - at)
        at += count
    answer.read()  # nothing; only then the connection can be used again
    return body


def failure_of(reply: Reply, where: str) -> Refusal:
    """The error of an answer that is none, with the code that the server had for it."""
    try:
        text = str(json.loads(bytes(reply.body))["error"])
    except (ValueError, KeyError, TypeError):
        text = bytes(reply.body[:200]).decode("utf-8", "replace") or f"status {reply.status}"
    return Refusal(f"{where}: {text}", _CODES.get(reply.status, codes.INTERNAL))


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


def decoded(reply: Reply) -> Tuple[List[Tensor], Dict[str, Any]]:
    """The outputs of an answer, and its parameters. Raises ValueError, KeyError or TypeError for one that is none."""
    length = reply.header_length or len(reply.body)
    document = json.loads(bytes(reply.body[:length]))
    tensors = []
    for output in document["outputs"]:
        datatype, shape = BY_NAME[output["datatype"]].number, [int(dim) for dim in output["shape"]]
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            tensors.append(_listed(output["name"], datatype, shape, output["data"]))
            continue
        part = reply.body[length : length + size]
        length += size
        if len(part) != size or (datatype != BYTES and size != nbytes_of(datatype, shape)):
            raise ValueError(f"output '{output['name']}' has {size} bytes, which do not fit")
        tensors.append(Tensor._received(output["name"], datatype, shape, None if size else b"", part))
    return tensors, document.get("parameters") or {}


def _listed(name: str, datatype: int, shape: Sequence[int], elements: Any) -> Tensor:
    """A tensor with elements that came as JSON."""
    kind = BY_NUMBER[datatype].numpy
    if kind is None:
        raise ValueError(f"output '{name}' has a data type that JSON has no numbers for")
    if datatype == BYTES:
        array = bytes_tensor.object_array([str(one).encode() for one in np.array(elements, object).reshape(-1)])
        return Tensor(name, array.reshape(shape))
    return Tensor(name, np.array(elements, kind).reshape(shape))
