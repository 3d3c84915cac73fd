"""Opening a source with FFmpeg, and reading its frames.

FFmpeg knows hundreds of formats and codecs, and some of its formats open other files and addresses. It may use only
those that are listed here, and what it wants to open goes through `Sources`: the parts of a playlist are asked for with
our own client (`web`), anything else is refused. RTSP is the exception, which FFmpeg does alone: the host is resolved
here, but where a server redirects to, FFmpeg goes. So a model has to allow it.

All of it happens in a player, and waits for as long as it likes: the stub ends a player that takes too long, or that
nobody wants any more (`processes`).
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
import urllib.parse
from typing import Any, Callable, Iterator, List, NamedTuple, NoReturn, Optional, Union

from stubserve_stub.backends.loading import import_package
from stubserve_stub.backends.video.options import VideoOptions
from stubserve_stub.backends.video.processes import Counts
from stubserve_stub.backends.video.web import Web, WebFile, split
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

_FORMATS = "mov,mp4,matroska,webm,mpegts,mpeg,avi,flv,ogg,hls,mjpeg,mpjpeg,h264,hevc,ivf,m4v,asf,gif"
_CODECS = (
    "h264,hevc,libdav1d,av1,vp8,libvpx,vp9,libvpx-vp9,mpeg1video,mpeg2video,mpeg4,h263,mjpeg,theora,libtheora,vc1,"
    "wmv1,wmv2,wmv3,msmpeg4v2,msmpeg4,flv,gif,png,prores,dnxhd,ffv1"
)
_LIMITS = {
    "format_whitelist": _FORMATS,
    "codec_whitelist": _CODECS,
    # FFmpeg opens nothing by itself; a name that it has not allows none. The session descriptions of `sdp` would.
    "protocol_whitelist": "none",
    # Keeping connections works only with FFmpeg's own.
    "http_persistent": "0",
    "http_multiple": "0",
    "max_reload": "3",
    "m3u8_hold_counters": "3",
    # Otherwise FFmpeg reads seconds of a live source to see its rate, which nothing here depends on.
    "fpsprobesize": "0",
}
_RTSP = {
    "format_whitelist": "rtsp,mpegts,asf",
    "protocol_whitelist": "tcp,udp,rtp",
    "allowed_media_types": "video",
}
# Formats without time stamps, for which FFmpeg makes up a rate
_UNTIMED = ("mjpeg", "mpjpeg", "h264", "hevc", "m4v")
_LONGEST = 4096
_WRITE = 2  # AVIO_FLAG_WRITE
_RTSP_PORT = 554
# In the place of a source's rate where it does not say one
_USUAL_RATE = 25.0

Given = Union[str, io.BytesIO]


class Decoded(NamedTuple):
    frame: Any
    # The time stamp of the frame in seconds; when the frame had been read; how long that took
    time_s: float
    read_at: float
    read_s: float


class Sources:
    """Opens a source. `refuse` gives it up at once and for good, and does not return."""

    def __init__(self, options: VideoOptions, files: str, threads: int, refuse: Callable[[Refusal], NoReturn]) -> None:
        self._options = options
        self._files = files
        self._threads = threads
        self._web = Web(options.networks, options.stall_s, refuse)
        self._av = import_package("av", "video")
        self._refusal: Optional[Refusal] = None

    def open(self, given: Given) -> "VideoSource":
        """Raises Refusal for what may not be opened, is no video, or fails."""
        scheme = scheme_of(given) if isinstance(given, str) else ""
        options = {**_LIMITS, "max_pixels": str(self._options.max_pixels)}
        file: Any = given
        with self._refusing():
            if scheme == "rtsp":
                file = self._numeric(str(given))
                options.update(_RTSP, rtsp_transport=self._options.rtsp)
            elif scheme == "file":
                file = _open_file(self._files, str(given))
            elif scheme:
                file = self._web.open(str(given))
            container = self._av.open(file, options=options, io_open=self._part)
            size = getattr(file, "size", None)
            endless = container.duration is None and (container.format.name == "hls" or size is None)
            live = scheme == "rtsp" or (scheme in ("http", "https") and endless)
            return VideoSource(container, self._prepared(container, live), live, self._refusing, self._web)

    def _part(self, url: str, flags: int, options: Any) -> WebFile:
        """Called by FFmpeg for what a source names."""
        try:
            if flags & _WRITE:
                raise Refusal("a source wants to write to an address", codes.INVALID_ARG)
            return self._web.open(url)
        except Refusal as refusal:
            # FFmpeg may go on, and fail later for a reason of its own.
            self._refusal = refusal
            raise

    def _numeric(self, url: str) -> str:
        """An RTSP address with the number of its host."""
        if not self._options.rtsp:
            raise Refusal("the parameter 'rtsp' of the model has to say 'tcp' or 'udp' first", codes.INVALID_ARG)
        parts = split(url, ("rtsp",))
        host = self._options.networks.resolve(parts.hostname or "", parts.port or _RTSP_PORT)[0]
        user, at, _ = parts.netloc.rpartition("@")
        place = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port else ""
        return urllib.parse.urlunsplit(parts._replace(netloc=user + at + place + port))

    def _prepared(self, container: Any, live: bool) -> Any:
        """The stream that is served, the others switched off. Raises Refusal for one that must not be decoded."""
        options = self._options
        videos = [stream for stream in container.streams.video if stream.codec_context is not None]
        if not videos:
            raise Refusal("the source has no video that can be decoded", codes.INVALID_ARG)
        context = videos[0].codec_context
        if context.codec.name not in _CODECS.split(","):
            raise Refusal(f"the codec {context.codec.name} is not served", codes.INVALID_ARG)
        # FFmpeg gives no size where its own look at the source has met this limit.
        if not 0 < context.width * context.height <= options.max_pixels:
            raise Refusal(
                "the source has frames of no known size, or of more pixels than the parameter 'max_pixels' allows, "
                f"which is {options.max_pixels}",
                codes.INVALID_ARG,
            )
        for stream in container.streams:
            if stream is not videos[0] and hasattr(stream, "discard"):
                # FFmpeg does not even fetch these variants of a playlist.
                stream.discard = "all"
        context.options = {"max_pixels": str(options.max_pixels)}
        context.thread_count = self._threads
        # Threads that take a frame each hold back as many frames.
        context.thread_type = "SLICE" if live else "AUTO"
        return videos[0]

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Has what FFmpeg and sockets raise become a Refusal, without the address, which may have a password."""
        error = self._av.error
        try:
            yield
        except MemoryError:
            raise
        except error.FFmpegError as failure:
            if self._refusal is not None:
                raise self._refusal from None
            is_wrong = isinstance(failure, (error.InvalidDataError, error.ArgumentError))
            code = codes.INVALID_ARG if is_wrong else codes.UNAVAILABLE
            raise Refusal(f"the source cannot be read: {failure.strerror}", code) from None
        except OSError as failure:
            raise Refusal(f"the source cannot be read: {failure.strerror or failure}", codes.UNAVAILABLE) from None


class VideoSource:
    """An open source. It is `live` if it goes on without its reader, has no end of its own, and may come back."""

    def __init__(self, container: Any, stream: Any, live: bool, refusing: Any, web: Web) -> None:
        self._web = web
        self._container = container
        self._stream = stream
        self._refusing = refusing
        self.live = live
        self._timed = not (live and container.format.name in _UNTIMED)
        context = stream.codec_context
        self.codec: str = context.name
        self.size = (int(context.width), int(context.height))

    def frames(self, key_frames: bool, counts: Counts) -> Iterator[Decoded]:
        """The frames to the end of the source. Those that cannot be decoded, or are no key frames, are counted.

        Raises Refusal if reading fails.
        """
        rate = float(self._stream.average_rate or _USUAL_RATE)
        last: Optional[float] = None
        opened_at = time.monotonic()
        packets = self._container.demux()
        start = opened_at
        while True:
            try:
                with self._refusing():
                    packet = next(packets, None)
            except IndexError:
                # At the end PyAV stumbles over streams that have appeared on the way; ours has had its last packet.
                packet = None
            read_at = time.monotonic()
            if packet is None:
                return
            if packet.stream.index != self._stream.index:
                continue
            if key_frames and packet.size and not packet.is_keyframe:
                counts.frame(intact=True)
                counts.drop(Counts.PASSED_OVER)
                continue
            for frame in self._decoded(packet, counts):
                counts.frame(intact=not frame.is_corrupt)
                if frame.is_corrupt:
                    counts.drop(Counts.BROKEN)
                    continue
                self._web.asked = 0
                if not self._timed:
                    last = read_at - opened_at
                elif frame.time is not None:
                    last = frame.time
                else:
                    last = 0.0 if last is None else last + 1 / rate
                yield Decoded(frame, last, read_at, read_at - start)
            start = time.monotonic()

    def _decoded(self, packet: Any, counts: Counts) -> List[Any]:
        try:
            with self._refusing():
                found: List[Any] = packet.decode()
                return found
        except Refusal:
            counts.frame(intact=False)
            counts.drop(Counts.BROKEN)
            return []


def scheme_of(address: str) -> str:
    """Raises Refusal for an address that has no scheme of a source."""
    scheme = address.partition(":")[0].lower()
    if len(address) > _LONGEST or any(ord(letter) < 33 for letter in address):
        raise Refusal(f"SOURCE has blanks, or is longer than {_LONGEST} letters", codes.INVALID_ARG)
    if scheme not in ("http", "https", "rtsp", "file"):
        raise Refusal(
            f"SOURCE has to begin with http:, https:, rtsp: or file:, got '{address[:40]}'", codes.INVALID_ARG
        )
    return scheme


def _open_file(folder: str, address: str) -> Any:
    """A file below the folder that the configuration names. Raises Refusal."""
    if not folder:
        raise Refusal("the parameter 'files' of the model has to name a folder of sources first", codes.INVALID_ARG)
    name = urllib.parse.unquote(address.partition(":")[2])
    root = os.path.realpath(folder)
    refusal = Refusal(f"there is no file '{name}' in the folder of sources", codes.INVALID_ARG)
    try:
        # A pipe without a writer would wait here.
        number = os.open(os.path.join(root, name.lstrip("/")), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise refusal from None
    # What has been opened decides, not what the path meant a moment before.
    place = os.path.realpath(f"/proc/self/fd/{number}")
    if not stat.S_ISREG(os.fstat(number).st_mode) or os.path.commonpath([root, place]) != root:
        os.close(number)
        raise refusal
    return os.fdopen(number, "rb")
