"""Sources of video for tests: clips, and a camera behind a server of HTTP. Needs PyAV."""

from __future__ import annotations

import io
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np

LEFT, TOP, SIDE = 4, 40, 40
# Of a transport stream
_CLOCK = Fraction(1, 90_000)


def picture(number: int, width: int, height: int, moves_from: int = 0) -> np.ndarray:
    """A frame: a bright square on dark ground, 4 pixels further right with each frame from `moves_from` on."""
    made = np.full((height, width, 3), 30, np.uint8)
    left = LEFT * max(number - moves_from, 0) % (width - SIDE)
    made[TOP : TOP + SIDE, left : left + SIDE] = 220
    return made


def clip(
    path: Path,
    frames: int = 50,
    width: int = 320,
    height: int = 240,
    moves_from: int = 0,
    codec: str = "mpeg4",
    b_frames: int | None = None,
    **options: str,
) -> Path:
    """Writes a clip of 25 frames a second with a key frame every 10; its format is that of its name."""
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = 10
        if b_frames is not None:
            stream.codec_context.max_b_frames = b_frames
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, width, height, moves_from), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


class Camera:
    """A live source: a transport stream without an end, for any number of viewers.

    Frames are taken when the test says so, or one every 20 ms. Their time stamps are those of the clock.
    """

    def __init__(self) -> None:
        self.size = (320, 240)
        self.codec = "mpeg2video"
        self.taken = 0
        self.viewers = 0
        self._news = threading.Condition()
        self._cut = 0
        self._running = False
        self._start = time.monotonic()

    def take(self, frames: int) -> None:
        with self._news:
            self.taken += frames
            self._news.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Takes frames all the time."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.02):
                self.take(1)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def cut(self) -> None:
        """Breaks off all viewers' streams."""
        with self._news:
            self._cut += 1
            self._news.notify_all()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers a request, until its viewer goes or is cut off."""
        handler.send_response(200)
        handler.send_header("Content-Type", "video/mp2t")
        handler.end_headers()
        with self._news:
            cut, shown = self._cut, self.taken
            self.viewers += 1
        try:
            self._film(handler, cut, shown)
        finally:
            self.viewers -= 1

    def _film(self, handler: BaseHTTPRequestHandler, cut: int, shown: int) -> None:
        outgoing = _Outgoing()
        while self._cut == cut:
            codec = self.codec
            with av.open(outgoing, "w", format="mpegts", options={"flush_packets": "1"}) as container:
                stream: Any = container.add_stream(codec, rate=25)
                encoder: Any = None
                while self._cut == cut and self.codec == codec:
                    with self._news:
                        if self.taken == shown and self._cut == cut:
                            self._news.wait(0.05)
                    if select.select([handler.connection], [], [], 0)[0]:
                        return
                    if self.taken == shown:
                        continue
                    shown += 1
                    if encoder is None or (encoder.width, encoder.height) != self.size:
                        encoder = self._encoder(codec)
                    frame = av.VideoFrame.from_ndarray(picture(shown, *self.size), "rgb24")
                    for packet in encoder.encode(frame):
                        packet.stream, packet.time_base = stream, _CLOCK
                        packet.pts = packet.dts = round((time.monotonic() - self._start) * 90_000)
                        container.mux(packet)
                    try:
                        handler.wfile.write(outgoing.take())
                    except OSError:
                        return

    def _encoder(self, codec: str) -> Any:
        encoder: Any = av.CodecContext.create(codec, "w")
        encoder.width, encoder.height = self.size
        encoder.pix_fmt, encoder.framerate, encoder.time_base = "yuv420p", 25, Fraction(1, 25)
        encoder.gop_size, encoder.max_b_frames = 5, 0
        if codec == "libx264":
            encoder.options = {"tune": "zerolatency"}
        return encoder


class _Outgoing(io.RawIOBase):
    def __init__(self) -> None:
        self._content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._content += bytes(content)
        return len(content)

    def take(self) -> bytes:
        content, self._content = bytes(self._content), bytearray()
        return content


@contextmanager
def web(folder: Path, **pages: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """Serves the files of a folder, with ranges, and `pages`, by their names; the port, on any address of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            if name in pages:
                pages[name](self)
                return
            path = folder / name
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, *text: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, address: Any) -> None:
            pass  # a reader that has gone

    with Server(("0.0.0.0", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
