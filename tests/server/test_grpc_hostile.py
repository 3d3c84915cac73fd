"""Clients of gRPC that want more than their part: others are served all the same."""

from __future__ import annotations

import contextlib
import gzip
import queue
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.frames import frame, window_update
from tests.real_server import PATIENCE_S, Serving, io_config, write_model
from tests.server.grpc_calls import SERVICE, connected, request, typed
from tests.server.http2_client import Raw, data, prefixed

MIB = 1 << 20

PATIENT = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            while not all(request.is_cancelled() for request in requests):
                time.sleep(0.005)
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    with Serving(repository, "--shm-limit=256M", "--http-max-input-size=400000000") as running:
        yield running


def claim(stream: int, nbytes: int, sent: bytes = b"x") -> bytes:
    """The beginning of a message of `nbytes`."""
    return data(stream, b"\0" + nbytes.to_bytes(4, "big") + sent, 0)


def infer_large(server: Serving, size: int) -> None:
    """A request of that many bytes, and its answer."""
    values = np.arange(size // 4, dtype=np.float32)
    with connected(server) as calls:
        answer = calls.infer(request(raw=[values.tobytes()], shape=[len(values)]))
        assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), values)


def until_served(server: Serving, size: int) -> None:
    """The same, until there is memory for it: who is slow is so only after a second."""
    message = request(raw=[bytes(size)], shape=[size // 4])
    with connected(server) as calls:
        while True:
            outcome = calls.stub.ModelInfer.future(message, timeout=PATIENCE_S)
            error = outcome.exception()
            if error is None:
                return
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "--shm-limit" in error.details()


def ask_for_much(raw: Raw, stream: int, size: int) -> None:
    """A request of `size` bytes, whose answer is as long."""
    message = prefixed(request(raw=[bytes(size)], shape=[size // 4]).SerializeToString())
    raw.socket.sendall(raw.head(stream) + data(stream, message[:1000], 0))
    at = 1000
    while raw.until(frames.WINDOW_UPDATE)[2] != stream:
        pass
    while at < len(message):
        piece = message[at : at + MIB]
        at += len(piece)
        raw.socket.sendall(data(stream, piece, frames.END_STREAM if at == len(message) else 0))


def test_what_streams_only_announce_takes_no_memory_from_others(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        streams = range(1, 27, 2)
        raw.socket.sendall(b"".join(raw.head(stream) + claim(stream, 200 * MIB) for stream in streams))
        raw.socket.sendall(frame(frames.PING, 0, 0, bytes(8)))
        raw.until(frames.PING)
        infer_large(server, 96 * MIB)


def test_unfinished_messages_of_one_connection_share(server: Serving) -> None:
    """What the first holds is nobody's business; those beside it have --connection-share together with it."""
    with Raw(server) as raw:
        raw.greet()
        for stream in (1, 3):
            raw.socket.sendall(raw.head(stream) + claim(stream, 150 * MIB, b"x" * 1000))
        # The windows grow as soon as the lengths are known.
        assert {raw.until(frames.WINDOW_UPDATE)[2] for _ in range(3)} == {0, 1, 3}
        for stream in (1, 3):
            for _ in range(80):
                raw.socket.sendall(data(stream, bytes(MIB), 0))
        _, headers = raw.answer()
        assert headers["grpc-status"] == "14"
        assert "--connection-share" in headers["grpc-message"]


def test_who_stops_after_much_yields_to_who_needs_the_memory(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1) + claim(1, 230 * MIB, b"x" * 1000))
        assert {raw.until(frames.WINDOW_UPDATE)[2] for _ in range(2)} == {0, 1}
        for _ in range(200):
            raw.socket.sendall(data(1, bytes(MIB), 0))
        until_served(server, 60 * MIB)
        _, headers = raw.answer()
        assert headers["grpc-status"] == "14"
        assert "the transfer was slow" in headers["grpc-message"]
        # The connection goes on.
        raw.socket.sendall(raw.head(3) + data(3, prefixed(request().SerializeToString())))
        assert raw.answer()[1]["grpc-status"] == "0"


@pytest.mark.parametrize("window", [10, frames.MAX_WINDOW])
def test_who_does_not_read_yields_to_who_needs_the_memory(server: Serving, window: int) -> None:
    """Whether its windows are closed or its socket is full."""
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: window})
        raw.socket.sendall(window_update(0, 1 << 30))
        ask_for_much(raw, 1, 200 * MIB)
        raw.until(frames.DATA)
        until_served(server, 60 * MIB)


def test_who_reads_nothing_is_given_up_in_any_case(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--send-timeout-secs=1") as server:
        with Raw(server) as raw:
            raw.greet({frames.INITIAL_WINDOW_SIZE: 10})
            ask_for_much(raw, 1, 50 * MIB)
            # The stream, for the connection is read.
            _, headers = raw.answer()
            assert headers["grpc-status"] == "14"
            assert "--send-timeout-secs" in headers["grpc-message"]
        with Raw(server) as raw:
            raw.greet({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
            raw.socket.sendall(window_update(0, 1 << 30))
            ask_for_much(raw, 1, 50 * MIB)
            server.wait_for("(?s)taken nothing of its answer.*taken nothing of its answer")


def test_an_idle_connection_is_closed_with_a_word(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--idle-timeout-secs=1") as server, Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1) + data(1, prefixed(request().SerializeToString())))
        assert raw.answer()[1]["grpc-status"] == "0"
        assert raw.goodbye() == (frames.NO_ERROR, "")


def test_compressed_messages_are_made_off_the_event_loop(server: Serving) -> None:
    """While some megabytes' worth are decompressed, others are answered; and what they become goes to the model."""
    values = np.zeros(60 * MIB // 4, np.float32)
    message = prefixed(gzip.compress(request(raw=[values.tobytes()], shape=[len(values)]).SerializeToString(), 1), 1)
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
        raw.socket.sendall(window_update(0, 1 << 30))
        small = prefixed(request().SerializeToString())
        # On the same stream they keep their order, though the second would be there first.
        head = raw.head(1, f"{SERVICE}/ModelStreamInfer", grpc_encoding="gzip")
        raw.socket.sendall(head + data(1, message, 0) + data(1, small))
        answered, headers = raw.answer()
        assert headers["grpc-status"] == "0"
        assert len(answered) > values.nbytes
        assert answered.endswith(struct.pack("<2f", 1, 2))


def test_bombs_are_counted_before_they_are_made(server: Serving) -> None:
    bomb = prefixed(gzip.compress(bytes(390 * MIB), 1), 1)
    with Raw(server) as raw:
        raw.greet()
        assert len(bomb) < 2 * MIB
        raw.socket.sendall(raw.head(1, grpc_encoding="gzip") + data(1, bomb[:MIB], 0) + data(1, bomb[MIB:]))
        _, headers = raw.answer()
        assert headers["grpc-status"] == "14"
        assert "--shm-limit" in headers["grpc-message"]


def test_many_requested_outputs(server: Serving) -> None:
    """Half a million, the same or others; what they would say has a limit of its own."""
    parent = psutil.Process(server.process.pid)
    before = parent.memory_info().rss
    for names in (["OUTPUT0"] * 500_000, [str(number) for number in range(500_000)]):
        message = request(raw=[bytes(4)], shape=[1])
        for name in names:
            message.outputs.add(name=name)
        with connected(server) as calls:
            code, text = calls.refusal(message)
        assert (code, "too many fields" in text) == ("RESOURCE_EXHAUSTED", True), (code, text)
    assert parent.memory_info().rss < before + (96 << 20)


def test_many_that_do_not_read_do_not_stop_others(server: Serving) -> None:
    """34 connections, each with an answer that would hold its part of the arena for ever."""
    with contextlib.ExitStack() as stack:
        for _ in range(34):
            raw = stack.enter_context(Raw(server))
            raw.greet({frames.INITIAL_WINDOW_SIZE: 0})
            ask_for_much(raw, 1, 7 * MIB)
        until_served(server, 60 * MIB)


def test_many_strings_and_classes_keep_nobody_waiting(repository: Path) -> None:
    """They are right all the same: typed and raw strings, in calls and in streams, and a wrong number of them."""
    write_model(repository, "text", config=io_config("STRING"))
    write_model(repository, "echo")
    with Serving(repository) as server, connected(server) as calls:
        texts = [b"", b"a" * 200, b"\0\0\0", b"text"] * 25_000
        packed = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        asked = [
            typed("text", "BYTES", "bytes_contents", texts),
            request("text", None, [len(texts)], [packed], "BYTES"),
        ]
        answers = [*map(calls.infer, asked), *(one.infer_response for one in calls.stream(*asked))]
        assert all(answer.raw_output_contents[0] == packed for answer in answers)
        asked[1].inputs[0].shape[0] += 1
        status, text = calls.refusal(asked[1])
        assert status == "INVALID_ARGUMENT"
        assert "expected 100001 string elements for inference input 'INPUT0' for model 'text', got 100000" in text
        refused, answered = calls.stream(asked[1], asked[0])
        assert "got 100000" in refused.error_message
        # Of the last its last byte is missing
        asked[1] = request("text", None, [len(texts)], [packed[:-1]], "BYTES")
        few = request("text", None, [1], [b"\x05\0\0\0abc"], "BYTES")
        for cut, length, there in ((asked[1], 4, 3), (few, 5, 3)):
            text = f"expecting string of length {length} but only {there} bytes available"
            status, found = calls.refusal(cut)
            assert (status, text in found) == ("INVALID_ARGUMENT", True), found
            refused, answered = calls.stream(cut, asked[0])
            assert text in refused.error_message
            assert answered.infer_response.raw_output_contents[0] == packed
        assert answered.infer_response.raw_output_contents[0] == packed
        values = np.random.default_rng(7).permutation(100_000).astype(np.float32)
        classes = request(raw=[values.tobytes()], shape=[len(values)])
        classes.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = len(values)
        for answer in (calls.infer(classes), calls.stream(classes)[0].infer_response):
            assert answer.outputs[0].datatype == "BYTES"
            first = struct.unpack_from("<I", answer.raw_output_contents[0])[0]
            assert answer.raw_output_contents[0][4 : 4 + first].decode() == f"99999.000000:{values.argmax()}"


def test_what_waits_for_a_busy_model_is_counted(repository: Path) -> None:
    """Ids of 1 MB, of which no hundred fit into --shm-limit together."""
    write_model(repository, "patient", PATIENT)
    write_model(repository, "echo")
    with Serving(repository, "--shm-limit=64M") as server, connected(server) as calls:
        ended: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
        waiting = []
        for number in range(100):
            call = calls.stub.ModelInfer.future(request("patient", id=f"{number}{'x' * 1_000_000}"))
            call.add_done_callback(ended.put)
            waiting.append(call)
        for _ in range(30):
            refused = ended.get(timeout=PATIENCE_S)
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            assert "--shm-limit" in refused.details()
        for call in waiting:
            call.cancel()
        # They give back what they kept.
        until_served(server, 40 * MIB)
