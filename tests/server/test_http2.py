"""HTTP/2 as no proper client speaks it: whatever comes, the connection ends with a word and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hpack import Encoder

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.budget import MAX_IDLE_FRAMES, MAX_RESETS
from stubserve.grpc.http2.frames import frame, rst_stream, window_update
from stubserve.grpc.http2.reader import MAX_FRAME_BYTES, MAX_STREAMS
from stubserve.grpc.http2.receive_stream import RECEIVE_WINDOW
from stubserve.grpc.wellknown import reflection
from tests.real_server import Serving, io_config, write_model
from tests.server.grpc_calls import SERVICE, connected, request
from tests.server.http2_client import Raw, data, prefixed

PATIENT = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            while not all(request.is_cancelled() for request in requests):
                time.sleep(0.005)
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""
COUNTS = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.count, args=(request,)).start()

        def count(self, request):
            sender, id = request.get_response_sender(), request.request_id()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1 << 14, np.float32))]))
                print(id, number, flush=True)
            print("sent all of", id, flush=True)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MESSAGE = request().SerializeToString()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(repository, "patient", PATIENT)
    write_model(repository, "counts", COUNTS, io_config(extra="model_transaction_policy { decoupled: true }"))
    with Serving(repository, "--shm-limit=64M", "--http-max-input-size=33554432") as running:
        yield running


def still_serves(server: Serving) -> None:
    with connected(server) as calls:
        assert calls.infer(request()).outputs


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_request_in_pieces(server: Serving, size: int) -> None:
    with Raw(server) as raw:
        raw.greet()
        sent = raw.head(1, flags=0) + frame(frames.CONTINUATION, frames.END_HEADERS, 1)
        sent += frame(frames.DATA, frames.PADDED, 1, b"\x03" + prefixed(MESSAGE)[:9] + bytes(3))
        sent += data(1, prefixed(MESSAGE)[9:], 0) + data(1, b"")
        for at in range(0, len(sent), size):
            raw.socket.sendall(sent[at : at + size])
        answered, headers = raw.answer()
        assert headers["grpc-status"] == "0"
        assert answered.endswith(struct.pack("<2f", 1, 2))


def test_windows_are_honoured(server: Serving) -> None:
    """A client that takes ten bytes at a time gets ten bytes at a time."""
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 10})
        raw.socket.sendall(raw.head(1) + data(1, prefixed(MESSAGE)))
        received = b""
        while True:
            found = raw.read()
            assert found is not None
            kind, flags, _, payload = found
            if kind == frames.DATA:
                assert len(payload) <= 10
                received += payload
                raw.socket.sendall(window_update(1, 10))
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                break
        assert received.endswith(struct.pack("<2f", 1, 2))


def test_windows_grow_with_the_settings(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 0})
        for stream in (1, 3, 5):
            raw.socket.sendall(raw.head(stream) + data(stream, prefixed(MESSAGE)))
        raw.socket.sendall(window_update(3, 4))
        assert len(raw.until(frames.DATA)[3]) == 4
        raw.socket.sendall(frames.settings({frames.INITIAL_WINDOW_SIZE: 7}))
        assert sorted((found[2], len(found[3])) for found in (raw.until(frames.DATA) for _ in range(3))) == [
            (1, 7), (3, 7), (5, 7)
        ]  # fmt: skip
        raw.socket.sendall(frames.settings({frames.INITIAL_WINDOW_SIZE: 3}))
        raw.socket.sendall(frames.settings({frames.INITIAL_WINDOW_SIZE: 1000}))
        assert [raw.answer()[1]["grpc-status"] for _ in range(3)] == ["0"] * 3


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", frames.PROTOCOL_ERROR),
        (frames.PREFACE + frames.HEAD.pack((MAX_FRAME_BYTES + 1) << 8, 0, 1), frames.FRAME_SIZE_ERROR),
        (frames.PREFACE + data(1, b"x"), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff"), frames.COMPRESSION_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, frames.PADDED | 4, 1, b"\x09\x82"), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.HEADERS, 0, 1, b"\x82") + frame(frames.PING, 0, 0, bytes(8)), 1),
        (frames.PREFACE + frame(frames.CONTINUATION, 0, 1, b"\x82"), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 0, b"short"), frames.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.RST_STREAM, 0, 1, b"x"), frames.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.SETTINGS, 0, 0, b"12345"), frames.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), frames.FRAME_SIZE_ERROR),
        (frames.PREFACE + frame(frames.SETTINGS, 0, 1), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frames.settings({frames.ENABLE_PUSH: 2}), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frames.settings({frames.MAX_FRAME_SIZE: 1}), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}), frames.FLOW_CONTROL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PRIORITY, 0, 0, bytes(5)), frames.PROTOCOL_ERROR),
        (frames.PREFACE + rst_stream(0, frames.CANCEL), frames.PROTOCOL_ERROR),
        (frames.PREFACE + rst_stream(1, frames.CANCEL), frames.PROTOCOL_ERROR),
        (frames.PREFACE + rst_stream(2, frames.CANCEL), frames.PROTOCOL_ERROR),
        (frames.PREFACE + window_update(1, 1), frames.PROTOCOL_ERROR),
        (frames.PREFACE + window_update(0, 0), frames.PROTOCOL_ERROR),
        (frames.PREFACE + window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)) * 5, frames.ENHANCE_YOUR_CALM),
        (
            frames.PREFACE + frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, bytes(16_384)) * 5,
            frames.ENHANCE_YOUR_CALM,
        ),
        (
            frames.PREFACE + frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1) * 70_000,
            frames.ENHANCE_YOUR_CALM,
        ),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(server: Serving, sent: bytes, code: int) -> None:
    with Raw(server) as raw:
        with contextlib.suppress(ConnectionError):
            raw.socket.sendall(sent)
        assert raw.goodbye()[0] == code
    still_serves(server)


@pytest.mark.parametrize(
    "useless",
    [
        frames.settings({}),
        frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}),
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        window_update(0, 1),
        window_update(1, 1),
        data(1, b"", 0),
        frame(frames.DATA, frames.PADDED, 1, b"\x03" + bytes(3)),
        frame(0xBB, 0, 0, b"what?"),
        frame(frames.GOAWAY, 0, 0, bytes(8)),
        rst_stream(3, frames.CANCEL),
    ],
)
def test_frames_that_move_nothing_come_to_an_end(server: Serving, useless: bytes) -> None:
    """The call beside them is one that does not end by itself."""
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, f"{SERVICE}/ModelStreamInfer"))
        raw.socket.sendall(raw.head(3) + data(3, prefixed(MESSAGE)))
        raw.answer()
        with contextlib.suppress(ConnectionError):
            raw.socket.sendall(useless * 2 * MAX_IDLE_FRAMES)
        assert raw.goodbye() == (frames.ENHANCE_YOUR_CALM, "too many frames that move nothing")
    still_serves(server)


def test_frames_that_let_something_through_are_no_flood(server: Serving) -> None:
    """One byte at a time, and both windows for each."""
    values = [1.0] * (MAX_IDLE_FRAMES // 2)
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 0})
        raw.socket.sendall(raw.head(1) + data(1, prefixed(request(values=values).SerializeToString())))
        received = 0
        while True:
            raw.socket.sendall(window_update(1, 1) + window_update(0, 1))
            found = raw.read()
            while found is not None and found[0] not in (frames.DATA, frames.HEADERS):
                found = raw.read()
            assert found is not None
            if found[0] == frames.HEADERS and found[1] & frames.END_STREAM:
                break
            received += len(found[3]) if found[0] == frames.DATA else 0
        assert received > 4 * len(values)


def test_a_reader_of_many_small_answers_may_say_so_for_each(server: Serving) -> None:
    """As Google's client does where many have come at once, and nothing is sent meanwhile."""
    count = 2 * MAX_IDLE_FRAMES
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 1 << 24})
        raw.socket.sendall(window_update(0, 1 << 24) + raw.head(1, f"{SERVICE}/ModelStreamInfer"))
        raw.socket.sendall(data(1, prefixed(MESSAGE), 0) * count)
        received, sizes = bytearray(), 0
        while sizes < count:
            found = raw.read()
            assert found is not None
            if found[0] != frames.DATA:
                continue
            received += found[3]
            while len(received) >= 5 and len(received) >= (length := 5 + int.from_bytes(received[1:5], "big")):
                del received[:length]
                sizes += 1
        raw.socket.sendall((window_update(1, 5) + window_update(0, 5)) * count)
        raw.socket.sendall(data(1, prefixed(MESSAGE), 0))
        while (found := raw.read()) is not None and found[0] != frames.DATA:
            assert found[0] != frames.GOAWAY
        assert found is not None


def test_streams_that_are_broken_on_purpose_count_as_cancelled(server: Serving) -> None:
    """The server resets them, which its client could otherwise have it do as often as it likes."""
    with Raw(server) as raw:
        raw.greet()
        message = prefixed(request("patient").SerializeToString())
        with contextlib.suppress(ConnectionError):
            for stream in range(1, 4 * MAX_RESETS, 2):
                raw.socket.sendall(raw.head(stream) + data(stream, message) + window_update(stream, 0))
        assert raw.goodbye() == (frames.ENHANCE_YOUR_CALM, "too many cancelled streams")
    still_serves(server)


def test_streams_beside_too_many_others_count_as_cancelled(server: Serving) -> None:
    """A proper client knows the limit after its first round trip, and what it has sent before that is refused."""
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(b"".join(raw.head(stream, f"{SERVICE}/ModelStreamInfer") for stream in range(1, 2048, 2)))
        raw.socket.sendall(raw.head(2049))
        while (found := raw.read()) is not None and found[0] != frames.RST_STREAM:
            assert found[0] != frames.GOAWAY
        assert found is not None
        assert found[2:] == (2049, frames.REFUSED_STREAM.to_bytes(4, "big"))
        with contextlib.suppress(ConnectionError):
            for stream in range(2051, 2051 + 4 * MAX_RESETS, 2):
                raw.socket.sendall(raw.head(stream))
        assert raw.goodbye() == (frames.ENHANCE_YOUR_CALM, "too many cancelled streams")
    still_serves(server)


def long_head(raw: Raw, stream: int, value: str, pieces: int) -> bytes:
    """A call whose metadata are too long, in one frame or in several."""
    whole = raw.encode([*CALL, ("content-type", "application/grpc"), ("x-long", value)], huffman=False)
    size = -(-len(whole) // pieces)
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    return b"".join(
        frame(
            frames.CONTINUATION if number else frames.HEADERS,
            frames.END_HEADERS if number == len(parts) - 1 else 0,
            stream,
            part,
        )
        for number, part in enumerate(parts)
    )


@pytest.mark.parametrize("pieces", [1, 10])
@pytest.mark.parametrize("length", [80_000, 600_000])
def test_metadata_over_the_limit_cost_their_own_call_only(server: Serving, length: int, pieces: int) -> None:
    with Raw(server) as raw:
        raw.greet()
        for stream in (1, 3):
            raw.socket.sendall(raw.head(stream, x_name="bystander"))
        raw.socket.sendall(long_head(raw, 5, "v" * length, pieces))
        _, headers = raw.answer()
        assert headers["grpc-status"] == "8"
        assert "65536 bytes" in headers["grpc-message"]
        # What was compressed before and after means what it did.
        for stream in (7, 1, 3):
            head = raw.head(7, x_name="bystander") if stream == 7 else b""
            raw.socket.sendall(head + data(stream, prefixed(MESSAGE)))
            answered, headers = raw.answer()
            assert headers["grpc-status"] == "0"
            assert answered.endswith(struct.pack("<2f", 1, 2))


def test_too_many_metadata_and_too_large_a_head_of_no_call(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, **{f"x_{number}": "" for number in range(400)}) + data(1, prefixed(MESSAGE)))
        assert raw.answer()[1]["grpc-status"] == "0"
        raw.socket.sendall(raw.head(3, **{f"x_{number}": "" for number in range(600)}))
        assert raw.answer()[1]["grpc-status"] == "8"
        fields = [(":method", "GET"), (":path", "/"), (":scheme", "http"), ("host", "h"), ("x", "v" * 70_000)]
        block = Encoder().encode(fields)
        raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 5, block))
        assert raw.answer()[1][":status"] == "431"


def test_the_size_of_the_table_may_go_up_and_down(server: Serving) -> None:
    """Blocks that begin with such a change are no others, however often they were seen."""
    with Raw(server) as raw:
        raw.greet()
        # None of it goes to the table, as if it were secret.
        block = Encoder().encode([(*field, True) for field in [*CALL, ("content-type", "application/grpc")]])
        stream = 1
        for size in (b"\x3f\xe1\x1f", b"\x20", b"\x3f\xe1\x1f"):
            raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS, stream, size + block))
            raw.socket.sendall(data(stream, prefixed(MESSAGE)))
            assert raw.answer()[1]["grpc-status"] == "0"
            stream += 2
        for literal in (b"\x40\x03x-a\x01b", b"\xbe"):
            raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS, stream, block + literal))
            raw.socket.sendall(data(stream, prefixed(MESSAGE)))
            assert raw.answer()[1]["grpc-status"] == "0"
            stream += 2


CALL = [(":method", "POST"), (":scheme", "http"), (":path", f"{SERVICE}/ModelInfer"), (":authority", "test")]


@pytest.mark.parametrize(
    "fields",
    [
        [*CALL, ("Content-Type", "application/grpc")],
        [*CALL, ("x y", "z")],
        [*CALL, ("x:y", "z")],
        [*CALL, ("", "z")],
        [*CALL, ("x", "a\nb")],
        [*CALL, ("x", "a\0b")],
        [*CALL, ("connection", "keep-alive")],
        [*CALL, ("keep-alive", "5")],
        [*CALL, ("proxy-connection", "close")],
        [*CALL, ("transfer-encoding", "chunked")],
        [*CALL, ("upgrade", "h2c")],
        [*CALL, ("te", "gzip")],
        [*CALL, (":path", "/again")],
        [*CALL, (":authority", "test")],
        [*CALL, (":status", "200")],
        [*CALL[1:], ("x", "y"), CALL[0]],
        CALL[1:],
        [CALL[0], *CALL[2:]],
        [*CALL[:2], CALL[3]],
        [*CALL[:2], (":path", ""), CALL[3]],
        CALL[:3],
        [*CALL[:3], (":authority", "")],
        [*CALL[:3], ("host", "a"), ("host", "a")],
        [*CALL, ("host", "other")],
    ],
)
def test_a_malformed_head_costs_its_stream(server: Serving, fields: list[tuple[str, str]]) -> None:
    with Raw(server) as raw:
        raw.greet()
        bystander = raw.head(1)
        if "content-type" not in dict(fields):
            fields = [*fields, ("content-type", "application/grpc")]
        raw.socket.sendall(bystander + frame(frames.HEADERS, frames.END_HEADERS, 3, raw.encode(fields)))
        _, _, stream, payload = raw.until(frames.RST_STREAM)
        assert (stream, frames.UINT32.unpack(payload)[0]) == (3, frames.PROTOCOL_ERROR)
        raw.socket.sendall(data(1, prefixed(MESSAGE)))
        assert raw.answer()[1]["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (window_update(1, 0), frames.PROTOCOL_ERROR),
        (window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (frame(frames.PRIORITY, 0, 1, bytes(4)), frames.FRAME_SIZE_ERROR),
        (data(1, b"") + data(1, b"more"), frames.STREAM_CLOSED),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x00\x01a\x01b"), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"\x82"), frames.PROTOCOL_ERROR),
    ],
)
def test_what_breaks_a_stream_ends_the_stream(server: Serving, sent: bytes, code: int) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, f"{SERVICE}/ModelStreamInfer"))
        # It stays open: its model does not answer.
        raw.socket.sendall(data(1, prefixed(request("patient").SerializeToString()), 0) + sent)
        _, _, stream, payload = raw.until(frames.RST_STREAM)
        assert (stream, frames.UINT32.unpack(payload)[0]) == (1, code)
        raw.socket.sendall(raw.head(3) + data(3, prefixed(MESSAGE)))
        assert raw.answer()[1]["grpc-status"] == "0"


def test_trailers_of_a_client_end_its_stream(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, f"{SERVICE}/ModelStreamInfer") + data(1, prefixed(MESSAGE), 0))
        trailers = raw.encode([("x-sum", "5")])
        raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, trailers))
        answered, headers = raw.answer()
        assert headers["grpc-status"] == "0"
        assert answered.endswith(struct.pack("<2f", 1, 2))


def test_streams_that_are_opened_to_be_cancelled(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        message = prefixed(request("patient").SerializeToString())
        with contextlib.suppress(ConnectionError):
            for stream in range(1, 4 * MAX_RESETS, 2):
                raw.socket.sendall(raw.head(stream) + data(stream, message) + rst_stream(stream, frames.CANCEL))
        assert raw.goodbye() == (frames.ENHANCE_YOUR_CALM, "too many cancelled streams")
    still_serves(server)


def test_too_many_streams_are_refused(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        heads = b"".join(raw.head(2 * number + 1) for number in range(MAX_STREAMS + 1))
        raw.socket.sendall(heads)
        _, _, stream, payload = raw.until(frames.RST_STREAM)
        assert (stream, frames.UINT32.unpack(payload)[0]) == (2 * MAX_STREAMS + 1, frames.REFUSED_STREAM)
    still_serves(server)


def test_more_than_the_window(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, f"{SERVICE}/Nothing2") + raw.head(3))
        raw.socket.sendall(data(3, b"\0" + (100 << 20).to_bytes(4, "big"), 0))
        # Not enough memory for that: answered at once. What comes behind is for a stream that is no more.
        _, headers = raw.answer()
        assert headers["grpc-status"] == "12"
        _, headers = raw.answer()
        assert headers["grpc-status"] == "14"
        assert "shm-limit" in headers["grpc-message"]
        raw.socket.sendall(data(3, bytes(1 << 20), 0) * 3)
        raw.socket.sendall(raw.head(5) + data(5, b"\0" + (8 << 20).to_bytes(4, "big") + bytes(100), 0))
        raw.socket.sendall(raw.head(7) + data(7, prefixed(MESSAGE)))
        assert raw.answer()[1]["grpc-status"] == "0"
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, f"{SERVICE}/ModelStreamInfer"))
        patient = prefixed(request("patient", [0.0] * 1000).SerializeToString())
        count = RECEIVE_WINDOW * 3 // len(patient)
        with contextlib.suppress(ConnectionError):
            for _ in range(count):
                raw.socket.sendall(data(1, patient, 0))
        assert raw.goodbye()[0] == frames.FLOW_CONTROL_ERROR
    still_serves(server)


def test_a_large_message_may_come_at_once(server: Serving) -> None:
    """Its place is there as soon as its length is known, so its client need not wait for one window after the other."""
    message = prefixed(request(raw=[bytes(8 << 20)], shape=[2 << 20]).SerializeToString())
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
        raw.socket.sendall(window_update(0, 1 << 30) + raw.head(1) + data(1, message[: 1 << 20], 0))
        stream = 0
        while not stream:
            _, _, stream, payload = raw.until(frames.WINDOW_UPDATE)
        assert frames.UINT32.unpack(payload)[0] + RECEIVE_WINDOW >= len(message)
        for at in range(1 << 20, len(message), 1 << 20):
            rest = message[at : at + (1 << 20)]
            raw.socket.sendall(data(1, rest, frames.END_STREAM if at + len(rest) == len(message) else 0))
        answered, headers = raw.answer()
        assert headers["grpc-status"] == "0"
        assert len(answered) > 8 << 20


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"", "13"),
        (prefixed(MESSAGE)[:-1], "13"),
        (b"\x07" + bytes(4), "13"),
        (prefixed(MESSAGE, 1), "13"),
        (b"\0\xff\xff\xff\xff", "8"),
        (prefixed(MESSAGE) * 2, "0"),
    ],
)
def test_messages_that_are_not_one(server: Serving, payload: bytes, status: str) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1) + data(1, payload))
        assert raw.answer()[1]["grpc-status"] == status


def test_compression_that_is_none(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        bomb = gzip.compress(bytes(80 << 20))
        raw.socket.sendall(raw.head(1, grpc_encoding="snappy") + data(1, prefixed(MESSAGE, 1)))
        assert raw.answer()[1]["grpc-status"] == "12"
        raw.socket.sendall(raw.head(3, grpc_encoding="gzip") + data(3, prefixed(MESSAGE, 1)))
        assert raw.answer()[1]["grpc-status"] == "13"
        raw.socket.sendall(raw.head(5, grpc_encoding="gzip") + data(5, prefixed(bomb, 1)))
        _, headers = raw.answer()
        assert headers["grpc-status"] == "8"
        raw.socket.sendall(raw.head(7, grpc_encoding="gzip") + data(7, prefixed(gzip.compress(MESSAGE), 1)))
        assert raw.answer()[1]["grpc-status"] == "0"
        # All of the message is there, but not what tells that it is whole.
        raw.socket.sendall(raw.head(9, grpc_encoding="gzip") + data(9, prefixed(gzip.compress(MESSAGE)[:-8], 1)))
        assert raw.answer()[1]["grpc-status"] == "13"


def test_what_is_no_grpc(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        block = Encoder().encode([(":method", "GET"), (":path", "/"), (":scheme", "http"), ("host", "test")])
        raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, block))
        assert raw.answer()[1][":status"] == "415"


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/grpc-web+proto", False),
        ("application/grpcx", False),
        ("application/grp", False),
    ],
)
def test_kinds_of_content(server: Serving, content_type: str, is_grpc: bool) -> None:
    with Raw(server) as raw:
        raw.greet()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", f"{SERVICE}/ModelInfer"), (":authority", "test")]
        block = Encoder().encode([*fields, ("te", "trailers"), ("content-type", content_type)])
        raw.socket.sendall(frame(frames.HEADERS, frames.END_HEADERS, 1, block) + data(1, prefixed(MESSAGE)))
        headers = raw.answer()[1]
        assert headers[":status"] == ("200" if is_grpc else "415")
        assert headers.get("grpc-status") == ("0" if is_grpc else None)


def test_what_follows_a_message_that_is_refused_takes_no_memory(server: Serving) -> None:
    refused = prefixed(request("nobody").SerializeToString())
    for path in ("ModelInfer", "ModelStreamInfer"):
        unread = prefixed(b"\xff") if path == "ModelStreamInfer" else refused
        with Raw(server) as raw:
            raw.greet()
            raw.socket.sendall(raw.head(1, f"{SERVICE}/{path}"))
            raw.socket.sendall(data(1, unread + b"\0" + (28 << 20).to_bytes(4, "big") + bytes(100), 0))
            assert raw.answer()[1]["grpc-status"] in ("5", "13")
    with connected(server) as calls:
        assert calls.infer(request(raw=[bytes(12 << 20)], shape=[3 << 20])).outputs


def test_a_reader_that_is_slow_already_slows_what_it_asks_for_then(server: Serving) -> None:
    """Of 128 MiB that it asks for without reading anything, the model gets no further than its credit."""
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 0})
        raw.socket.sendall(raw.head(1, f"{SERVICE}/ModelStreamInfer"))
        raw.socket.sendall(data(1, prefixed(request("counts", [48], id="first").SerializeToString()), 0))
        server.wait_for("sent all of first")
        raw.socket.sendall(data(1, prefixed(request("counts", [2000], id="second").SerializeToString()), 0))
        server.wait_for("second 1\\b")
        counts = [-1]

        def stands_still() -> bool:
            time.sleep(0.2)
            counts.append(len(re.findall(r"second \d", server.output)))
            return counts[-1] == counts[-2]

        while not stands_still():
            pass
        assert counts[-1] * 65536 < 24 << 20


def test_who_asks_without_reading_is_cut_off(server: Serving) -> None:
    """A question to the reflection service of 40 bytes has an answer of 50 KB."""
    ask = reflection["grpc.reflection.v1"].ServerReflectionRequest
    question = prefixed(ask(file_containing_symbol="inference.ModelInferRequest").SerializeToString())
    with Raw(server) as raw:
        raw.greet({frames.INITIAL_WINDOW_SIZE: 0})
        raw.socket.sendall(raw.head(1, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"))
        raw.socket.sendall(data(1, question * 1000))
        raw.socket.sendall(window_update(0, 1 << 30) + window_update(1, 1 << 30))
        answered, headers = raw.answer()
        assert headers["grpc-status"] == "8"
        assert len(answered) < 2 << 20


def test_a_deadline(server: Serving) -> None:
    with Raw(server) as raw:
        raw.greet()
        raw.socket.sendall(raw.head(1, grpc_timeout="50m") + data(1, prefixed(request("patient").SerializeToString())))
        assert raw.answer()[1]["grpc-status"] == "4"
    still_serves(server)


def test_keepalive_and_age(repository: Path) -> None:
    write_model(repository, "echo")
    flags = ("--grpc-keepalive-time=100", "--grpc-keepalive-timeout=100", "--grpc-keepalive-permit-without-calls=1")
    with Serving(repository, *flags) as server, Raw(server) as raw:
        raw.greet()
        # It is asked whether it is there, says nothing, and is taken for gone.
        raw.until(frames.PING)
        assert raw.read() is None
        still_serves(server)
    with Serving(repository, "--grpc-max-connection-age=100") as server, Raw(server) as raw:
        raw.greet()
        assert raw.goodbye()[0] == frames.NO_ERROR
