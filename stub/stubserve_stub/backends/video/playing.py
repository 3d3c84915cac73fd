"""What a player does: it opens a source, decodes it, and tells the stub of the frames that are wanted.

Everything happens on one thread and in this order: read, decode, pick, wait until the client has taken the frame
before, look at the age again, make the tensor, tell. So at most one frame is held beside what the decoder holds,
whatever the client does. A client that does not read keeps its player waiting, and with it the source; so does a model
that is slow. Afterwards the frames of a live source that have grown too old are dropped (`picking`).

The records to the stub::

    (OPENED, codec, width, height, live)
    (CHANGED, width, height)
    (PLAYED, time_s, received_ns, number, gap, shape, fit)    the picture lies in the slot; shape and fit may be None
    (ENDED,)
    (REFUSED, text, code, log)    another try may help where the source is live; `log` is for the server, or empty
    (FAILED, text, code)          no other try would help
"""

from __future__ import annotations

import io
import mmap
import os
import re
import resource
import socket
import time
from typing import Any, Callable, NoReturn

from stubserve_stub.backends.video.options import VideoOptions
from stubserve_stub.backends.video.picking import Ages, Rate
from stubserve_stub.backends.video.picture import Pictures
from stubserve_stub.backends.video.processes import MOST_BYTES, Counts, Slot
from stubserve_stub.backends.video.source import Decoded, Sources, VideoSource
from stubserve_stub.runtime.failure import Refusal, describe, for_log
from stubserve_stub.wire import codes, messages

OPENED, CHANGED, PLAYED, ENDED, REFUSED, FAILED = "opened", "changed", "played", "ended", "refused", "failed"

_LONGEST_TEXT = 4096
# A thread's stack, which counts though little of it is used
_STACK_BYTES = 9 << 20


class Playing:
    """How sources of the model `model` are played. `files` is the folder of sources, empty for none."""

    def __init__(self, options: VideoOptions, files: str, threads: int, model: str) -> None:
        self._options = options
        self._files = files
        self._threads = threads
        self._model = model

    def play(self, line: socket.socket, slot: Slot) -> None:
        """All of a player's work. What fails goes to the stub as a record."""
        what = "VIDEO"

        def tell(*record: Any) -> None:
            line.send(messages.pack(record))

        def refuse(refusal: Refusal) -> NoReturn:
            tell(REFUSED, str(refusal)[:_LONGEST_TEXT], refusal.code, "")
            os._exit(0)

        try:
            given, pictures = messages.unpack(line.recv(MOST_BYTES))
            if isinstance(given, str):
                what = _shown(given)
            else:
                given = _received(line, given)
            limit = self._limit_memory()
            sources = Sources(self._options, self._files, self._threads, refuse)
            _Player(self._options, tell, line, slot, pictures).play(sources.open(given))
            if slot.counts.intact:
                tell(ENDED)
            else:
                # FFmpeg goes on without what it has had no memory for.
                text = f"no frame of the source could be decoded: {what}, in {limit} of memory"
                refuse(Refusal(text, codes.INVALID_ARG))
        except MemoryError:
            # What is left to do needs little, and the process ends.
            resource.setrlimit(resource.RLIMIT_DATA, resource.getrlimit(resource.RLIMIT_DATA)[1:] * 2)
            text = f"the source {what} needs more memory than {limit}"
            tell(FAILED, text, codes.UNAVAILABLE)
        except Refusal as refusal:
            refuse(refusal)
        except Exception as failure:
            tell(REFUSED, describe(failure)[:_LONGEST_TEXT], codes.INTERNAL, for_log(failure))

    def _limit_memory(self) -> str:
        """Bounds what this process may take from now on; the limit and the setting, for errors."""
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[5]) * mmap.PAGESIZE
        most = self._options.max_memory_mb
        limit = used + (most << 20) + self._threads * _STACK_BYTES
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard != resource.RLIM_INFINITY and hard < limit:
            return f"{hard} bytes, which --stub-memory-limit allows a process of model '{self._model}'"
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        return f"{most} MB, which the parameter 'max_memory_mb' of model '{self._model}' allows"


class _Player:
    """Plays one source. `pictures` says whether the stub wants them."""

    def __init__(
        self, options: VideoOptions, tell: Callable[..., None], line: socket.socket, slot: Slot, pictures: bool
    ) -> None:
        self._options = options
        self._tell = tell
        self._line = line
        self._slot = slot
        self._counts = slot.counts
        self._pictures = Pictures(options) if pictures or options.motion else None
        self._wants_pictures = pictures
        self._rate = Rate(options.rate)
        self._live = False
        # Whether a frame is on its way to the client
        self._sending = False

    def play(self, source: VideoSource) -> None:
        """Tells of all frames to the end of the source. Raises Refusal, and MemoryError."""
        self._live, size = source.live, source.size
        self._tell(OPENED, source.codec, *size, source.live)
        ages = Ages()
        for decoded in source.frames(self._options.key_frames, self._counts):
            frame = decoded.frame
            received = time.time_ns()
            ages.arrived(decoded.time_s, decoded.read_at, decoded.read_s)
            if (frame.width, frame.height) != size:
                size = (frame.width, frame.height)
                self._tell(CHANGED, *size)
            self._take(decoded, ages, received)

    def _take(self, decoded: Decoded, ages: Ages, received_ns: int) -> None:
        counts = self._counts
        if not self._rate.picks(decoded.time_s):
            counts.drop(Counts.PASSED_OVER)
        elif self._is_late(decoded, ages):
            counts.drop(Counts.LATE)
        elif not self._moves(decoded):
            counts.drop(Counts.STILL)
        else:
            self._await_room()
            if self._is_late(decoded, ages):
                counts.drop(Counts.LATE)
            else:
                self._play(decoded, received_ns)

    def _is_late(self, decoded: Decoded, ages: Ages) -> bool:
        limit = self._options.max_age_s
        return self._live and bool(limit) and ages.age(decoded.time_s, time.monotonic()) > limit

    def _moves(self, decoded: Decoded) -> bool:
        if not self._options.motion:
            return True
        # What it is compared with depends on whether the last one has been sent.
        self._await_room()
        assert self._pictures is not None
        return self._pictures.moves(decoded.frame)

    def _await_room(self) -> None:
        if self._sending:
            self._sending = False
            if self._line.recv(1) == b"\1" and self._pictures is not None:
                self._pictures.seen()

    def _play(self, decoded: Decoded, received_ns: int) -> None:
        shape = fit = None
        if self._wants_pictures:
            assert self._pictures is not None
            try:
                shape, fit = self._pictures.draw(decoded.frame, self._slot.picture)
            except Refusal as refusal:
                self._tell(FAILED, str(refusal), refusal.code)
                os._exit(0)
        counts = self._counts
        number, gap = counts.number, counts.gap
        counts.sent()
        self._sending = True
        self._tell(PLAYED, decoded.time_s, received_ns, number, gap, shape, fit)


def _received(line: socket.socket, nbytes: int) -> io.BytesIO:
    found = io.BytesIO()
    while found.tell() < nbytes:
        found.write(line.recv(MOST_BYTES) or os._exit(0))
    found.seek(0)
    return found


def _shown(address: str) -> str:
    """An address for errors, without what may be secret: the user, the password and the query."""
    return re.sub(r"//[^/?#]*@", "//", address).partition("?")[0][:200]
