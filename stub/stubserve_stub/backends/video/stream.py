"""One request: follows its source, and sends the frames that are wanted until the source or the client goes.

The frames come from a player, a process that this thread starts for each opening of the source (`processes`), and ends
as soon as the client has gone or there has been no frame for too long, whatever the player is doing then. A client that
does not read keeps this thread waiting, and with it the player; so does the model that the frames go to.

A live source that breaks off is opened again, after pauses that grow. The stream says so with EVENT, in responses that
have no other output: `opened`, `changed` (the size), `failed` (the model of the frames), `lost`, `ended`.
"""

from __future__ import annotations

import time
from typing import Any, List, Optional, Sequence

import numpy as np

from stubserve_stub.api.logger import Logger
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
from stubserve_stub.backends.video.pipeline import Pipeline
from stubserve_stub.backends.video.playing import CHANGED, ENDED, FAILED, OPENED, PLAYED, REFUSED
from stubserve_stub.backends.video.processes import Counts, Player, Players
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class Gone(Exception):
    """The client of a stream has gone."""


class Failed(Exception):
    """Neither another try nor another source would help."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class VideoStream:
    """The stream of a request."""

    def __init__(
        self, options: VideoOptions, players: Players, request: InferenceRequest, sender: InferenceResponseSender
    ) -> None:
        self._options = options
        self._players = players
        self._wanted = request.requested_output_names()
        others = sorted(self._wanted.difference(OUTPUTS))
        self._pipeline = Pipeline(options, others, request) if options.model and others else None
        self._pictures = self._pipeline is not None or FRAME in self._wanted or FIT in self._wanted
        self._sender = sender
        self._live = False
        # The number of the last frame, those left out since the last response, how many were intact in this opening
        self._number = -1
        self._gap = np.zeros(4, np.int64)
        self._intact = 0
        # When there was an intact frame, or the client took something
        self._progress_at = time.monotonic()

    def follow(self, given: Any) -> None:
        """Sends all responses but the end. Raises Refusal if the source cannot be opened, fails, or stays away."""
        pause, last_at = _FIRST_PAUSE_S, time.monotonic()
        while True:
            self._progress_at, self._intact = time.monotonic(), 0
            try:
                self._play(given)
                reason = "the source has ended"
                if not self._live or not self._options.reconnect_s:
                    self._tell("ended", f"{self._number + 1} frames")
                    return
            except Gone:
                return
            except Failed as failed:
                raise failed.refusal from None
            except Refusal as refusal:
                if not self._live or not self._options.reconnect_s:
                    raise
                reason = str(refusal)
            if self._intact:
                pause, last_at = _FIRST_PAUSE_S, time.monotonic()
            if time.monotonic() + pause - last_at > self._options.reconnect_s:
                text = f"the source is lost, and has not come back within {self._options.reconnect_s:g} s: {reason}"
                raise Refusal(text, codes.UNAVAILABLE)
            self._tell("lost", f"{reason}; it is opened again in {pause:g} s")
            if is_cancelled(self._sender, pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _play(self, given: Any) -> None:
        player = self._players.start(self._number, given, self._pictures)
        try:
            while True:
                kind, *fields = self._next(player)
                if kind == PLAYED:
                    self._pass_on(player, *fields)
                elif kind == OPENED:
                    codec, width, height, self._live = fields
                    how = "live" if self._live else "until its end"
                    self._tell("opened", f"{codec} {width}x{height}, {how}")
                elif kind == CHANGED:
                    self._tell("changed", "{}x{}".format(*fields))
                elif kind == ENDED:
                    return
                elif kind == FAILED:
                    raise Failed(Refusal(*fields))
                elif kind == REFUSED:
                    text, code, log = fields
                    if log:
                        Logger.log_error(log)
                    raise Refusal(text, code)
        finally:
            self._number, gap = player.close()
            self._gap += gap

    def _next(self, player: Player) -> Sequence[Any]:
        """The next record of the player. Raises Gone, and Refusal where it has died or comes no further."""
        while True:
            if self._sender.is_cancelled():
                raise Gone
            record = player.receive()
            intact = player.counts.intact
            # Packets of which nothing can be decoded are none: perhaps the codec has changed.
            if intact > self._intact:
                self._intact, self._progress_at = intact, time.monotonic()
            if record is not None:
                return record
            if time.monotonic() - self._progress_at > self._options.stall_s:
                raise Refusal(f"there has been no frame for {self._options.stall_s:g} s", codes.UNAVAILABLE)

    def _pass_on(
        self,
        player: Player,
        time_s: float,
        received_ns: int,
        number: int,
        gap: Sequence[int],
        shape: Optional[Sequence[int]],
        fit: Optional[Sequence[float]],
    ) -> None:
        self._gap += gap
        answers: List[List[Tensor]] = [[]]
        sent = True
        if shape is not None:
            picture = player.picture(shape)
            first = [Tensor(FIT, np.array(fit, np.float32))]
            if self._pipeline is None:
                answers = [[Tensor(FRAME, picture), *first]]
            else:
                try:
                    answers = [[*first, *outputs] for outputs in self._pipeline.answers(picture)]
                except Refusal as refusal:
                    if not self._pipeline.may_recover:
                        raise Failed(refusal) from None
                    answers, sent = [], False
                    self._gap[Counts.BROKEN] += 1
                    self._tell("failed", str(refusal))
        for outputs in answers:
            outputs += [
                Tensor(TIME, np.array([time_s])),
                Tensor(RECEIVED, np.array([received_ns], np.int64)),
                Tensor(NUMBER, np.array([number], np.int64)),
                Tensor(GAP, self._gap),
            ]
            self._sender.send(InferenceResponse(outputs))
        if sent:
            self._gap = np.zeros(4, np.int64)
        self._sender._await_room()
        self._progress_at = time.monotonic()
        player.go_on(sent)

    def _tell(self, event: str, detail: str) -> None:
        if EVENT in self._wanted:
            self._sender.send(
                InferenceResponse([Tensor(EVENT, np.array([event.encode(), detail.encode()], np.object_))])
            )
            self._progress_at = time.monotonic()
