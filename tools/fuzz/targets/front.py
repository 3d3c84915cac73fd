"""Requests through a front: HAProxy with the configuration of the fleet, before two servers that are none.

They say which sequence a server reads out of a body, and which path: all of one sequence has to reach one of them, and
what concerns all servers has to reach none of them, or is refused. An input is a body, or a path if it begins with "/".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stubserve.api.placement import BodyPlacer
from stubserve.errors import ServeError
from stubserve.fleet.balancer import Addresses, Balancer
from stubserve.fleet.directory import Fleet, Front, ReplicaInfo
from stubserve.http.infer_json import decode_json
from stubserve.inference.tensor import drop_blocks
from tools.ports import free_ports

from ..finding import Finding
from ..server import Memory, signature

# What servers answer to all of these is about the server, and not about a request.
OF_ALL = re.compile(
    r"/v2/(repository/|logging|trace/|systemsharedmemory|cudasharedmemory|models/.*/trace/setting)|/v2/.*/stats$"
)
PATIENCE_S = 60


class Reading(BaseHTTPRequestHandler):
    """Answers with the name of its server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = str(self.server.server_port).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(name)))
        self.end_headers()
        self.wfile.write(name)

    do_POST = do_GET

    def log_message(self, *text: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # HAProxy's probes break off


@contextlib.contextmanager
def running() -> Iterator[None]:
    """What all inputs share. Raises FileNotFoundError where there is no HAProxy."""
    global _port, _fan_out
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stubserve-fuzz-")))
        _port, grpc, metrics, _fan_out, fan_out_grpc, peer = free_ports(6)
        balancer = Balancer(folder, Addresses("127.0.0.1", _port, grpc, metrics, _fan_out, fan_out_grpc))
        ports = [_serve(stack, 0), _serve(stack, 0)]
        _serve(stack, _fan_out)
        replicas = [
            ReplicaInfo(f"{number:032x}", "all", (), "127.0.0.1", port, port, port, sequences=True)
            for number, port in zip((2, 4), ports, strict=True)
        ]
        stack.callback(balancer.end)
        balancer.show(Fleet(1, replicas, [Front("f", "127.0.0.1", peer)], {"all": ()}), "f")
        _places.clear()
        yield


def _serve(stack: contextlib.ExitStack, port: int) -> int:
    server = stack.enter_context(Server(("127.0.0.1", port), Reading))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.shutdown)
    return int(server.server_port)


_port = _fan_out = 0
# Where each sequence is
_places: dict[Any, str] = {}


def fuzz_one(data: bytes) -> None:
    if data.startswith(b"/"):
        path = "".join(chr(byte) for byte in data if 32 < byte < 127)
        reached = _ask(path, b"")
        if OF_ALL.match(unquote(path).partition("?")[0]) and reached not in ("", str(_fan_out)):
            raise Finding("what concerns all servers reaches one", path)
        return
    sequence = _sequence(data)
    for _ in range(2):
        reached = _ask("/v2/models/floats/infer", data)
        if sequence and reached and _places.setdefault(sequence, reached) != reached:
            raise Finding("a sequence is in two places", repr(sequence))


def _sequence(body: bytes) -> Any:
    """As a server reads it; nothing where it refuses the request."""
    memory = Memory()
    try:
        request, _ = decode_json(body, signature("floats"), BodyPlacer(b"", None, 0, memory.store), 1 << 16)
    except ServeError:
        return 0
    drop_blocks(request.inputs)
    return request.options.correlation_id


def _ask(path: str, body: bytes) -> str:
    """Who has answered; nothing if the front refuses it."""
    connection = http.client.HTTPConnection("127.0.0.1", _port, timeout=PATIENCE_S)
    try:
        connection.putrequest("POST", path, skip_accept_encoding=True)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        answer = response.read()
        if response.status >= 500:
            raise Finding(f"the front answers {response.status}", path)
        return answer.decode() if response.status == 200 else ""
    finally:
        connection.close()


def seed(id: object, more: str = "") -> bytes:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    parameters = {"sequence_id": id, "sequence_start": True}
    return json.dumps({"id": more, "parameters": parameters, "inputs": [tensor]}, ensure_ascii=False).encode()


SEEDS = [
    seed(7),
    seed(2**63),
    seed("0"),
    seed(" a"),
    seed(",x"),
    seed('"'),
    seed("caf\u00e9"),
    json.dumps(json.loads(seed("caf\u00e9"))).encode(),
    seed("b", '"sequence_id": 5'),
    seed("b").replace(b'"sequence_id"', b'"sequence\\u005fid"'),
    seed("b").replace(b'": "b"', b'"\t:\n"b"'),
    seed("b").replace(b'"parameters": {', b'"parameters": {"sequence_id": "c", '),
    b"/v2/repository/index",
    b"/v2/%72epository/index",
    b"/v2/loggin%67",
    b"/v2/models/floats/stats",
    b"/v2/models/floats/trace/settin%67?a=b",
    b"/v2/system%73haredmemory/status",
    b"/v2/health/ready",
]
WORDS = [
    b'"sequence_id":',
    b'"parameters":{',
    b"\\u0062",
    b"\\u005f",
    b"0",
    b'""',
    b" ",
    b"%2f",
    b"%6c",
    b"//",
    b"/./",
    b"?",
    b"/stats",
]
