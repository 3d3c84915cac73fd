"""The video backend with servers and files that mean no good, clients that leave, and deaths. Needs PyAV.

Sources stall after ten minutes here. So what ends before has been ended by something else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_server import Serving, eventually, write_model
from tests.server.grpc_calls import connected

pytestmark = pytest.mark.long
pytest.importorskip("av")

from tests.server.test_video import (  # noqa: E402
    Following,
    config,
    follow,
    following,
    numbers_of,
    refusal,
)
from tests.video_sources import Camera, clip, web  # noqa: E402

PATIENT = {"networks": "loopback", "stall_ms": 600_000}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    clip(folder / "a.mp4")
    return folder


@pytest.fixture(scope="module")
def models(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, "patient", "", config(files=clips, rtsp="tcp", **PATIENT))
    write_model(path, "udp", "", config(rtsp="udp", **PATIENT))
    write_model(path, "small", "", config(max_memory_mb=100, threads=1, **PATIENT))
    return path


@pytest.fixture(scope="module")
def serving(models: Path) -> Iterator[Serving]:
    with Serving(models) as server:
        server.wait_until_ready()
        yield server


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in found.split()]


def starters(server: Serving) -> list[int]:
    return [child for stub in server.stub_pids() for child in children(stub)]


def players(server: Serving) -> list[int]:
    """The processes of the sources that are open."""
    return [child for starter in starters(server) for child in children(starter)]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def saying(content: bytes) -> Iterator[tuple[int, list[socket.socket]]]:
    """A server that says this to whoever comes, and then nothing; its port, and the connections that it has."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(content)
                    connections.append(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], connections
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in connections:
        connection.close()


@contextlib.contextmanager
def neither_accepting_nor_refusing() -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        yield server.getsockname()[1]


def page(content: bytes) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def variants(addresses: list[str]) -> bytes:
    lines = [f"#EXT-X-STREAM-INF:BANDWIDTH={index + 1}\n{address}\n" for index, address in enumerate(addresses)]
    return "".join(["#EXTM3U\n", *lines]).encode()


@pytest.mark.parametrize(
    ("model", "address", "said"),
    [
        ("patient", "http://127.0.0.1:{}/", b""),
        ("patient", "http://127.0.0.1:{}/", b"HTTP/1.1 200 O"),
        ("patient", "http://127.0.0.1:{}/", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("patient", "http://127.0.0.1:{}/x.m3u8", b"HTTP/1.1 200 OK\r\n\r\n#EXTM3U\n"),
        ("patient", "https://127.0.0.1:{}/", b""),
        ("patient", "https://127.0.0.1:{}/", b"\x16\x03\x03\x10\x00"),
        ("patient", "rtsp://127.0.0.1:{}/", b""),
        ("patient", "rtsp://127.0.0.1:{}/", b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: DESCRIBE, SETUP\r\n\r\n"),
        ("udp", "rtsp://127.0.0.1:{}/", b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: DESCRIBE, SETUP\r\n\r\n"),
    ],
)
def test_a_client_that_leaves_ends_what_is_done_for_it(serving: Serving, model: str, address: str, said: bytes) -> None:
    with saying(said) as (port, connections), following(serving, model, address.format(port)) as stream:
        eventually(lambda: connections and players(serving))
        stream.call.cancel()
        eventually(lambda: not players(serving))


def test_a_client_that_leaves_ends_a_connection_that_is_being_made(serving: Serving, clips: Path) -> None:
    """And those that a playlist would lead to, so the next client need not wait."""
    with neither_accepting_nor_refusing() as closed:
        addresses = [f"http://127.0.0.1:{closed}/{index}.m3u8" for index in range(30)]
        with web(clips, **{"many.m3u8": page(variants(addresses))}) as port, connected(serving) as grpc:
            sources = [f"http://127.0.0.1:{port}/many.m3u8"] * 3 + [addresses[0]]
            streams = [Following(grpc, "patient", source) for source in sources]
            eventually(lambda: len(players(serving)) == 4)
            for stream in streams:
                stream.call.cancel()
            assert numbers_of(follow(serving, "patient", "file:a.mp4", ["NUMBER"])) == list(range(50))
    eventually(lambda: not players(serving))


@pytest.mark.parametrize("kind", ["variants", "machines", "parts", "keys"])
def test_a_source_leads_to_a_bounded_number_of_requests(serving: Serving, clips: Path, kind: str) -> None:
    """And to few lines of the log: FFmpeg itself would go on to the last variant or part."""
    asked = []

    def missing(handler: Any) -> None:
        asked.append(handler.path)
        handler.send_error(404)

    with web(clips, **{"missing.ts": missing}) as other:
        hosts = 200 if kind == "machines" else 1
        addresses = [f"http://127.0.0.{1 + index % hosts}:{other}/missing.ts" for index in range(2000)]
        if kind in ("variants", "machines"):
            content = variants(addresses)
        else:
            key = '#EXT-X-KEY:METHOD=AES-128,URI="{}"\n' if kind == "keys" else ""
            parts = "".join(f"{key.format(address)}#EXTINF:1,\n{address}\n" for address in addresses)
            content = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n{parts}#EXT-X-ENDLIST\n".encode()
        lines = serving.output.count("\n")
        with web(clips, **{"list.m3u8": page(content)}) as port:
            limit = (
                "leads to more than 20 machines" if kind == "machines" else "has led to 100 requests without a frame"
            )
            assert refusal(serving, "patient", f"http://127.0.0.1:{port}/list.m3u8") == f"the source {limit}"
        assert len(asked) <= 100
        assert serving.output.count("\n") - lines < 20


def test_lists_in_lists_end(serving: Serving, clips: Path) -> None:
    with web(clips, **{"around.m3u8": page(variants(["around.m3u8"]))}) as port:
        refusal(serving, "patient", f"http://127.0.0.1:{port}/around.m3u8")


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I", 8 + len(content)) + kind + content


def full(kind: bytes, *numbers: int, more: bytes = b"") -> bytes:
    return box(kind, struct.pack(f">{1 + len(numbers)}I", 0, *numbers), more)


def claiming(frames: int) -> bytes:
    """An MP4 of some hundred bytes that says that it has so many frames."""
    entry = struct.pack(">6xH16xHHIIIH32xHH", 1, 320, 240, 0x480000, 0x480000, 0, 1, 24, 0xFFFF)
    table = box(
        b"stbl",
        full(b"stsd", 1, more=box(b"jpeg", entry)),
        full(b"stts", 1, frames, 1),
        full(b"stsz", 1, frames),
        full(b"stsc", 1, 1, frames, 1),
        full(b"stco", 1, 0),
    )
    handler = full(b"hdlr", 0, more=b"vide" + bytes(13))
    data = box(b"dinf", full(b"dref", 1, more=full(b"url ")))
    info = box(b"minf", full(b"vmhd", 0, 0), data, table)
    media = box(b"mdia", full(b"mdhd", 0, 0, 1000, frames, 0), handler, info)
    track = box(b"trak", full(b"tkhd", 0, 0, 1, 0, 0, more=bytes(60)), media)
    movie = box(b"moov", full(b"mvhd", 0, 0, 1000, frames, more=bytes(80)), track)
    return box(b"ftyp", b"isom\0\0\0\0isom") + movie


def test_a_source_has_bounded_memory(serving: Serving, clips: Path) -> None:
    """Whatever takes it: FFmpeg's index of a file, or a playlist without an end. Other streams notice nothing."""

    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n")
        while True:
            handler.wfile.write(b"#EXTINF:1,\nhttp://127.0.0.1:1/a-part-with-a-long-name.ts\n" * 1000)

    with following(serving, "patient", "file:a.mp4") as other, web(clips, **{"endless.m3u8?token=5": endless}) as port:
        other.frame()
        limit = "100 MB, which the parameter 'max_memory_mb' of model 'small' allows"
        text = refusal(serving, "small", f"http://me:secret@127.0.0.1:{port}/endless.m3u8?token=5")
        assert text == f"the source http://127.0.0.1:{port}/endless.m3u8 needs more memory than {limit}"
        text = refusal(serving, "small", claiming(80_000_000))
        assert text == f"no frame of the source could be decoded: VIDEO, in {limit} of memory"
        assert other.event("ended") == "50 frames"


@pytest.mark.parametrize("source", ["http://127.0.0.1/" + "a" * 300_000, "http://\x80/", "http://a..b/"])
def test_what_is_no_address_costs_nothing(serving: Serving, source: str) -> None:
    lines = serving.output.count("\n")
    for _ in range(5):
        assert "SOURCE has blanks, or is longer" in (text := refusal(serving, "patient", source)) or "none of" in text
    assert serving.output.count("\n") == lines
    assert numbers_of(follow(serving, "patient", "file:a.mp4", ["NUMBER"])) == list(range(50))


def test_pictures_are_made_without_threads(serving: Serving) -> None:
    """On a large machine PyAV would take a thread of each core, and the stacks count as memory of the source."""
    made = Camera()
    with web(Path("."), live=made.serve) as port, made.running():
        with following(serving, "small", f"http://127.0.0.1:{port}/live", ["FRAME", "NUMBER"]) as stream:
            stream.frame()
            (player,) = players(serving)
            threads = len(os.listdir(f"/proc/{player}/task"))
        made.cut()
        assert threads == 1


def test_a_crash_ends_one_stream(serving: Serving, clips: Path) -> None:
    """A live source is opened again, and another source ends with an error."""
    made = Camera()
    with web(clips, live=made.serve) as port, connected(serving) as grpc, made.running():
        camera = Following(grpc, "patient", f"http://127.0.0.1:{port}/live")
        before = camera.frame()["NUMBER"][0]
        (player,) = players(serving)
        with saying(b"HTTP/1.1 200 OK\r\n\r\n") as (silent, _):
            other = Following(grpc, "patient", f"http://127.0.0.1:{silent}/")
            eventually(lambda: len(players(serving)) == 2)
            (second,) = set(players(serving)) - {player}
            os.kill(second, signal.SIGSEGV)
            errors = [answer.error_message for answer in other.call if answer.error_message]
            assert errors == ["the process that reads the source was ended by SIGSEGV"]
        assert camera.frame()["NUMBER"][0] > before
        os.kill(player, signal.SIGABRT)
        assert "was ended by SIGABRT; it is opened again" in camera.event("lost")
        assert camera.frame()["NUMBER"][0] > before
        camera.call.cancel()
        made.cut()


def test_signals_to_all_processes_end_no_stream(serving: Serving, clips: Path) -> None:
    """As a service manager sends them: the server ends its stubs when streams are over."""
    made = Camera()
    with web(clips, live=made.serve) as port, made.running():
        with following(serving, "patient", f"http://127.0.0.1:{port}/live") as stream:
            stream.frame()
            for process in (*starters(serving), *players(serving)):
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                    os.kill(process, number)
            for _ in range(20):
                stream.frame()
        made.cut()


def test_nothing_stays_of_streams_that_have_ended(serving: Serving) -> None:
    def held() -> list[int]:
        processes = [*serving.stub_pids(), *starters(serving)]
        return [len(os.listdir(f"/proc/{process}/{what}")) for process in processes for what in ("fd", "task")]

    follow(serving, "patient", "file:a.mp4", ["NUMBER"])
    eventually(lambda: not players(serving))
    before = held()
    for _ in range(20):
        follow(serving, "patient", "file:a.mp4", ["NUMBER"])
    eventually(lambda: held() == before)


def test_an_instance_without_its_starter_is_started_again(models: Path) -> None:
    with Serving(models, "--load-model=patient", "--model-control-mode=explicit") as server:
        server.wait_until_ready()
        (starter,) = starters(server)
        os.kill(starter, signal.SIGKILL)
        eventually(lambda: not is_alive(starter))
        with connected(server) as grpc:
            list(Following(grpc, "patient", "file:a.mp4").call)
        server.wait_for("instance 'patient_0' is back")
        assert numbers_of(follow(server, "patient", "file:a.mp4", ["NUMBER"])) == list(range(50))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_of_a_server(models: Path, number: int) -> None:
    """While a source is waited for that says nothing, by a client that is still there."""
    flags = ("--load-model=patient", "--model-control-mode=explicit", "--exit-timeout-secs=1")
    with Serving(models, *flags) as server, saying(b"") as (port, connections):
        server.wait_until_ready()
        with following(server, "patient", f"rtsp://127.0.0.1:{port}/"):
            eventually(lambda: connections and players(server))
            left = [*starters(server), *players(server)]
            server.process.send_signal(number)
            server.process.wait()
            eventually(lambda: not any(map(is_alive, left)))
