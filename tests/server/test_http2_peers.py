"""HTTP/2 beside a second implementation, python-hyper's h2.

As the client it checks every frame that the server sends against its own state of the connection, and raises where one
is not allowed. As a server it judges what a client sends: where it takes that, or refuses it, so has ours.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.frames import frame, rst_stream, window_update
from tests.real_server import PATIENCE_S, Serving, write_model
from tests.server.grpc_calls import SERVICE, request
from tests.server.http2_client import Raw, data, prefixed

MESSAGE = request().SerializeToString()
ANSWER = struct.pack("<2f", 1, 2)
CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"{SERVICE}/ModelInfer"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
PAUSED = [(name, f"{SERVICE}/ModelStreamInfer" if name == ":path" else value) for name, value in CALL]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    with Serving(repository, "--grpc-http2-max-ping-strikes=0") as running:
        yield running


class Client:
    """h2's client on a socket. What the server sends it must be allowed to send."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.data: dict[int, bytearray] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goodbye: h2.events.ConnectionTerminated | None = None
        self.acknowledges = True

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def receive(self) -> bool:
        """One read; False at the connection's end."""
        received = self.socket.recv(1 << 16)
        for event in self.h2.receive_data(received) if received else ():
            if isinstance(event, h2.events.DataReceived):
                self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
                if self.acknowledges and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self.headers.setdefault(event.stream_id, {}).update(
                    {str(name): str(value) for name, value in event.headers}
                )
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goodbye = event
        self.flush()
        return bool(received)

    def until_ended(self, *streams: int) -> None:
        while not self.ended.issuperset(streams):
            assert self.receive(), "the connection ended"

    def ask(self, stream: int, message: bytes = MESSAGE, piece: int = 1 << 14, weight: int | None = None) -> None:
        """A call, its message in pieces as the windows allow."""
        self.h2.send_headers(stream, CALL, priority_weight=weight)
        content = prefixed(message)
        while content:
            room = min(piece, self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room:
                self.h2.send_data(stream, content[:room], end_stream=room >= len(content))
                content = content[room:]
                self.flush()
            else:
                assert self.receive()

    def answered(self, stream: int) -> bytes:
        """The message of an answer that has come."""
        headers = self.headers[stream]
        assert (headers[":status"], headers["grpc-status"]) == ("200", "0"), headers
        content = bytes(self.data[stream])
        assert int.from_bytes(content[1:5], "big") == len(content) - 5
        return content[5:]


@contextmanager
def client(server: Serving) -> Iterator[Client]:
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=PATIENCE_S) as sock:
        made = Client(sock)
        made.h2.initiate_connection()
        made.flush()
        yield made


def test_calls_beside_each_other_with_priorities(server: Serving) -> None:
    with client(server) as peer:
        streams = list(range(1, 80, 2))
        for stream in streams:
            if stream % 3 == 0:
                peer.h2.prioritize(stream, weight=stream, depends_on=max(stream - 2, 0))
            peer.ask(stream, weight=1 + stream if stream % 4 == 1 else None)
        peer.until_ended(*streams)
        assert all(peer.answered(stream).endswith(ANSWER) for stream in streams)


@pytest.mark.parametrize("piece", [1, 7, 1 << 14])
def test_both_windows_both_ways(server: Serving, piece: int) -> None:
    """Messages larger than any window; h2 counts what either side may still send."""
    size = 3 << 20 if piece > 7 else 3000
    values = bytes(range(256)) * (size // 256)
    message = request(raw=[values], shape=[len(values) // 4]).SerializeToString()
    with client(server) as peer:
        if piece == 1:
            peer.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 50})
            peer.flush()
            assert peer.receive()
        peer.ask(1, message, piece)
        peer.until_ended(1)
        assert peer.answered(1).endswith(values)
        assert peer.h2.outbound_flow_control_window > 0


def test_a_client_that_acknowledges_nothing_is_sent_no_more_than_its_window(server: Serving) -> None:
    values = bytes(1 << 20)
    with client(server) as peer:
        peer.acknowledges = False
        peer.ask(1, request(raw=[values], shape=[len(values) // 4]).SerializeToString())
        while len(peer.data.get(1, b"")) < 65_535:
            assert peer.receive()
        # The other stream's call is answered with its headers, but the connection's window is used up.
        peer.ask(3)
        peer.acknowledges = True
        peer.h2.increment_flow_control_window(2 << 20)
        peer.h2.increment_flow_control_window(2 << 20, 1)
        peer.flush()
        peer.until_ended(1, 3)
        assert peer.answered(1).endswith(values)
        assert peer.answered(3).endswith(ANSWER)


def test_settings_that_change_while_calls_are_open(server: Serving) -> None:
    codes = h2.settings.SettingCodes
    with client(server) as peer:
        stream = 1
        changes: dict[h2.settings.SettingCodes | int, int]
        for changes in (
            {codes.HEADER_TABLE_SIZE: 0},
            {codes.INITIAL_WINDOW_SIZE: 1},
            {codes.MAX_FRAME_SIZE: 1 << 20, codes.INITIAL_WINDOW_SIZE: 1 << 20},
            {codes.HEADER_TABLE_SIZE: 8192, codes.MAX_CONCURRENT_STREAMS: 1},
            {codes.ENABLE_PUSH: 0, codes.MAX_HEADER_LIST_SIZE: 100_000},
            {codes.INITIAL_WINDOW_SIZE: 65_535},
        ):
            peer.h2.update_settings(changes)
            peer.ask(stream)
            peer.until_ended(stream)
            assert peer.answered(stream).endswith(ANSWER)
            stream += 2


def test_long_heads_padding_trailers_and_pings(server: Serving) -> None:
    with client(server) as peer:
        # Longer than a frame: h2 continues it.
        peer.h2.send_headers(1, [*CALL, ("x-long", "v" * 40_000)])
        peer.h2.send_data(1, prefixed(MESSAGE), pad_length=200)
        peer.h2.ping(b"12345678")
        peer.h2.send_headers(1, [("x-checksum", "17")], end_stream=True)
        peer.flush()
        peer.until_ended(1)
        assert peer.answered(1).endswith(ANSWER)


def test_a_client_that_resets_and_goes_on(server: Serving) -> None:
    with client(server) as peer:
        for stream in range(1, 200, 4):
            peer.h2.send_headers(stream, PAUSED)
            peer.h2.reset_stream(stream, 8)
            peer.ask(stream + 2)
        peer.until_ended(*range(3, 200, 4))
        assert all(peer.answered(stream).endswith(ANSWER) for stream in range(3, 200, 4))


def test_a_connection_that_grows_old_ends_in_order(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--grpc-max-connection-age=300") as server, client(server) as peer:
        peer.h2.send_headers(1, PAUSED)
        peer.flush()
        while peer.goodbye is None:
            assert peer.receive()
        assert (peer.goodbye.error_code, peer.goodbye.last_stream_id) == (0, 1)
        # What is open may be finished; h2 itself takes no more after such a word.
        peer.socket.sendall(data(1, prefixed(MESSAGE)))
        with peer.socket.makefile("rb") as rest:
            assert ANSWER in rest.read()


# As a server


def verdict_of_h2(sent: bytes) -> str:
    """What h2's server says to it: "connection" where it ends that, "stream" where it ends a stream, "" where neither.

    "either" is where both ways are right.
    """
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    peer.data_to_send()
    try:
        peer.receive_data(sent)
    except h2.exceptions.ProtocolError:
        return "connection"
    said = peer.data_to_send()
    at = 0
    while at < len(said):
        word, _, _ = frames.HEAD.unpack_from(said, at)
        if word & 0xFF == frames.RST_STREAM:
            # What comes for a stream that has ended may have been on its way: one may say so, or overlook it.
            code = frames.UINT32.unpack_from(said, at + frames.HEAD_BYTES)[0]
            return "either" if code == frames.STREAM_CLOSED else "stream"
        at += frames.HEAD_BYTES + (word >> 8)
    return ""


def verdict_of_ours(server: Serving, sent: bytes) -> str:
    """The same of our server. Resets that say NO_ERROR are how it ends a call that is answered early."""
    mark = b"no mistake"[:8]
    with Raw(server) as raw:
        raw.socket.sendall(sent + frame(frames.PING, 0, 0, mark))
        verdict = ""
        while (found := raw.read()) is not None:
            kind, flags, _, payload = found
            if kind == frames.GOAWAY:
                return "connection"
            if kind == frames.RST_STREAM and frames.UINT32.unpack(payload)[0] != frames.NO_ERROR:
                verdict = "stream"
            if kind == frames.PING and flags & frames.ACK and payload == mark:
                return verdict
        raise AssertionError("the connection ended without a word")


def block(fields: list[tuple[str, str]]) -> bytes:
    """A header block that changes no table."""
    return Encoder().encode([(name, value, True) for name, value in fields], huffman=False)


def heads(stream: int, flags: int = frames.END_HEADERS, fields: list[tuple[str, str]] = PAUSED) -> bytes:
    return frame(frames.HEADERS, flags, stream, block(fields))


BEGIN = frames.PREFACE + frames.settings({})
# Frames on few streams, in an order that nobody looks after.
FRAMES = st.one_of(
    st.builds(heads, st.sampled_from([1, 1, 3, 5])),
    st.builds(lambda stream: heads(stream, frames.END_HEADERS | frames.END_STREAM), st.sampled_from([1, 3])),
    st.builds(data, st.sampled_from([1, 1, 3, 5, 0]), st.sampled_from([b"", b"\0"]), st.sampled_from([0, 1])),
    st.builds(rst_stream, st.sampled_from([1, 1, 3, 0]), st.just(frames.CANCEL)),
    st.builds(window_update, st.sampled_from([0, 1, 1, 3]), st.sampled_from([0, 1, 1, 1, 2**31 - 1])),
    st.builds(lambda size: frame(frames.PING, 0, 0, bytes(size)), st.sampled_from([8, 8, 8, 7])),
    st.builds(lambda stream: frame(frames.PING, 0, stream, bytes(8)), st.sampled_from([0, 0, 1])),
    st.just(frames.settings({frames.INITIAL_WINDOW_SIZE: 100_000})),
    st.sampled_from([
        frame(frames.SETTINGS, frames.ACK, 0),
        frame(frames.SETTINGS, 0, 0, bytes(5)),
        frames.settings({frames.ENABLE_PUSH: 2}),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""),
        frame(0xBB, 0, 1, b"what?"),
        frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, bytes(4)),
    ]),
)  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(FRAMES, min_size=1, max_size=6))
def test_what_h2_refuses_is_refused_and_what_it_takes_is_taken(server: Serving, sent: list[bytes]) -> None:
    wanted = verdict_of_h2(BEGIN + b"".join(sent))
    found = verdict_of_ours(server, BEGIN + b"".join(sent))
    assert wanted == "either" or bool(found) == bool(wanted), (wanted, found, [one[:9].hex() for one in sent])
