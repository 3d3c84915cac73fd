"""One request: follows its source, and sends the frames that are wanted until the source or the client goes.

Everything happens on one thread and in this order: read, decode, pick, wait until the client has room, look at the age
again, make the tensor, ask the model that it goes to, send. So at most one frame is held beside what the decoder holds,
whatever the client does. A client that does not read keeps its own thread waiting, and with it the source; so does a
model that is slow. Afterwards the frames of a live source that have grown too old are dropped (`picking`).

A live source that breaks off is opened again, after pauses that grow. The stream says so with EVENT, in responses that
have no other output: `opened`, `changed` (the size), `failed` (the model of the frames), `lost`, `ended`.
"""

from __future__ import annotations

import time
from typing import List, Tuple

import numpy as np

from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.streaming import is_cancelled
from stubserve_stub.backends.video.options import (
    EVENT,
    FIT,
    FRAME,
    GAP,
    NUMBER,
    OUTPUTS,
    RECEIVED,
    TIME,
    VideoOptions,
)
from stubserve_stub.backends.video.picking import Ages, Rate
from stubserve_stub.backends.video.picture import Pictures
from stubserve_stub.backends.video.pipeline import Pipeline
from stubserve_stub.backends.video.source import Counts, Decoded, Given, Sources
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class Gone(Exception):
    """The client of a stream has gone."""


class Failed(Exception):
    """A frame cannot become an answer, and neither another try nor another source would help."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class VideoStream:
    """The stream of a request; `files` is the folder of sources, empty for none."""

    def __init__(
        self,
        options: VideoOptions,
        files: str,
        threads: int,
        request: InferenceRequest,
        sender: InferenceResponseSender,
    ) -> None:
        self._options = options
        self._wanted = request.requested_output_names()
        others = sorted(self._wanted.difference(OUTPUTS))
        self._pipeline = Pipeline(options, others, request) if options.model and others else None
        self._sender = sender
        self._sources = Sources(options, files, threads, self._watch)
        self._pictures = Pictures(options)
        self._rate = Rate(options.rate)
        self._counts = Counts()
        self._live = False
        self._size: Tuple[int, int] = (0, 0)
        # When there was a frame, or the client took something
        self._intact = 0
        self._progress_at = time.monotonic()

    def follow(self, given: Given) -> None:
        """Sends all responses but the end. Raises Refusal if the source cannot be opened, fails, or stays away."""
        pause = _FIRST_PAUSE_S
        intact, last_at = 0, time.monotonic()
        while True:
            self._progress_at = time.monotonic()
            try:
                self._play(given)
                reason = "the source has ended"
                if not self._live or not self._options.reconnect_s:
                    self._end()
                    return
            except Gone:
                return
            except Failed as failed:
                raise failed.refusal from None
            except Refusal as refusal:
                if not self._live or not self._options.reconnect_s:
                    raise
                reason = str(refusal)
            if self._counts.intact > intact:
                intact, last_at, pause = self._counts.intact, time.monotonic(), _FIRST_PAUSE_S
            if time.monotonic() + pause - last_at > self._options.reconnect_s:
                text = f"the source is lost, and has not come back within {self._options.reconnect_s:g} s: {reason}"
                raise Refusal(text, codes.UNAVAILABLE)
            self._tell("lost", f"{reason}; it is opened again in {pause:g} s")
            if is_cancelled(self._sender, pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _play(self, given: Given) -> None:
        source = self._sources.open(given)
        try:
            self._live, self._size = source.live, source.size
            width, height = source.size
            self._tell("opened", f"{source.codec} {width}x{height}, {'live' if source.live else 'until its end'}")
            ages = Ages()
            for decoded in source.frames(self._options.key_frames, self._counts, self._watch_packet):
                self._take(decoded, ages)
        finally:
            source.close()

    def _take(self, decoded: Decoded, ages: Ages) -> None:
        frame, counts = decoded.frame, self._counts
        if self._sender.is_cancelled():
            raise Gone
        received = time.time_ns()
        ages.arrived(decoded.time_s, decoded.read_at, decoded.read_s)
        if (frame.width, frame.height) != self._size:
            self._size = (frame.width, frame.height)
            self._tell("changed", f"{frame.width}x{frame.height}")
        if not self._rate.picks(decoded.time_s):
            counts.drop(Counts.PASSED_OVER)
        elif self._is_late(decoded, ages):
            counts.drop(Counts.LATE)
        elif not self._pictures.moves(frame):
            counts.drop(Counts.STILL)
        else:
            self._sender._await_room()
            self._progress_at = time.monotonic()
            if self._is_late(decoded, ages):
                counts.drop(Counts.LATE)
            else:
                self._send(decoded, received)

    def _is_late(self, decoded: Decoded, ages: Ages) -> bool:
        limit = self._options.max_age_s
        return self._live and bool(limit) and ages.age(decoded.time_s, time.monotonic()) > limit

    def _send(self, decoded: Decoded, received_ns: int) -> None:
        counts = self._counts
        answers: List[List[Tensor]] = [[]]
        if self._pipeline is not None or FRAME in self._wanted or FIT in self._wanted:
            try:
                picture, fit = self._pictures.tensor(decoded.frame)
                if self._pipeline is not None:
                    answers = self._pipeline.answers(picture)
            except Refusal as refusal:
                if self._pipeline is None or not self._pipeline.may_recover:
                    raise Failed(refusal) from None
                counts.drop(Counts.BROKEN)
                self._tell("failed", str(refusal))
                return
            frame = [] if self._pipeline is not None else [Tensor(FRAME, picture)]
            answers = [[*frame, Tensor(FIT, fit), *outputs] for outputs in answers]
        for outputs in answers:
            outputs += [
                Tensor(TIME, np.array([decoded.time_s])),
                Tensor(RECEIVED, np.array([received_ns], np.int64)),
                Tensor(NUMBER, np.array([counts.number], np.int64)),
                Tensor(GAP, np.array(counts.gap, np.int64)),
            ]
            self._sender.send(InferenceResponse(outputs))
        self._pictures.seen()
        counts.gap = [0, 0, 0, 0]
        self._progress_at = time.monotonic()

    def _tell(self, event: str, detail: str) -> None:
        if EVENT in self._wanted:
            self._sender.send(
                InferenceResponse([Tensor(EVENT, np.array([event.encode(), detail.encode()], np.object_))])
            )
            self._progress_at = time.monotonic()

    def _end(self) -> None:
        if not self._counts.intact:
            raise Refusal("no frame of the source could be decoded", codes.INVALID_ARG)
        self._tell("ended", f"{self._counts.number + 1} frames")

    def _watch_packet(self) -> None:
        # Packets of which nothing can be decoded are none: perhaps the codec has changed.
        if self._counts.intact > self._intact:
            self._intact, self._progress_at = self._counts.intact, time.monotonic()
        self._watch()

    def _watch(self) -> None:
        if self._sender.is_cancelled():
            raise Gone
        if time.monotonic() - self._progress_at > self._options.stall_s:
            raise Refusal(f"there has been no frame for {self._options.stall_s:g} s", codes.UNAVAILABLE)
