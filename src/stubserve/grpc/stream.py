"""ModelStreamInfer: any number of requests on one stream, also to different models.

Guarantees:
- requests enter their models in the order of their messages, however long the server looks at one of them;
- responses of models that are not decoupled leave in the order of their requests, whichever is ready first; those of
  decoupled models leave when they come, each request's own in order;
- an error is a message and ends neither the stream nor other requests. With the metadata `triton_grpc_error: true` the
  first error that a model's execution ends in ends the stream, with its status; what the server itself refuses is a
  message even then, as upstream has it;
- when the client has said all, the stream ends after the last response; when the client is gone, everything that is
  under way is cancelled;
- memory is bounded: while the client does not read it is not read from either, and decoupled models that answer it
  wait (`Request.pause`); nor is it while MAX_UNDER_WAY of its requests are under way. What it has sent by then, within
  its window (2 MiB), is still taken.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Mapping

from stubserve.api.inference_server import InferenceServer
from stubserve.errors import ServeError, internal
from stubserve.grpc.infer import GrpcInferCall, Work, held_blocks
from stubserve.grpc.infer_decode import Envelope, split
from stubserve.grpc.infer_encode import Parts, encode_empty_final, encode_stream_error
from stubserve.grpc.transport import OK, UNAVAILABLE, Keep, Rpc
from stubserve.grpc.wire import Malformed
from stubserve.inference.long_work import LongWork, OrderedJobs
from stubserve.inference.request import Response
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.grpc")

MAX_UNDER_WAY = 1024
STOPPING_TEXT = "GRPC server is shutting down and has stopped accepting new requests."


class _Turn:
    """The place of one request in the order of responses; `parts` is its message once that is there."""

    __slots__ = ("blocks", "parts")

    def __init__(self) -> None:
        self.parts: Parts | Work | None = None
        self.blocks: list[Block] = []


class ModelStreamInfer:
    """The handler of a ModelStreamInfer RPC. `strict` is the mode of `triton_grpc_error`."""

    def __init__(self, server: InferenceServer, call: Rpc, forwarded: Mapping[str, str] | None, strict: bool) -> None:
        self._server = server
        self._call = call
        self._forwarded = forwarded
        self._strict = strict
        # Requests under way; of those whose model is not decoupled also their turns, in order
        self._under_way: dict[GrpcInferCall, _Turn | None] = {}
        self._turns: deque[_Turn] = deque()
        # What is to be done before the next of them may enter
        self._jobs = OrderedJobs(server.offload)
        # Where the stream stands
        self._closed = False
        self._half_closed = False
        self._writable = True
        self._reading = True
        self._stopping = False

    # What the transport tells

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        if self._closed:
            return
        try:
            envelope = split(data)
        except Malformed as malformed:
            self._close(malformed.status, malformed.text)
            return
        server = self._server
        infer: GrpcInferCall | None = None
        try:
            model = server.find_model(envelope.model_name, envelope.model_version)
            infer = GrpcInferCall(envelope, model, server, self._call, self._on_response, self._on_refused, self._jobs)
            turn = None if model.signature.decoupled else _Turn()
            self._under_way[infer] = turn
            if turn is not None:
                self._turns.append(turn)
            infer.start(data, self._forwarded, block, offset)
            if self._jobs.busy:
                self._jobs.add(None, functools.partial(self._begun, infer))
            else:
                self._begun(infer)
        except ServeError as error:
            self._refuse(infer, envelope, error)
        except Malformed as malformed:
            self._close(malformed.status, malformed.text)
        except Exception:
            log.exception("a request of a stream failed inside the server")
            unexpected = internal("unexpected error while the request was handled; see the server's log")
            self._refuse(infer, envelope, unexpected)
        self._read_or_not()

    def on_half_close(self) -> None:
        self._half_closed = True
        self._end_if_done()

    def on_writable(self) -> None:
        self._writable = True
        self._read_or_not()
        for infer in list(self._under_way):
            infer.resume()

    def on_cancel(self) -> None:
        self._cancel_all()

    def stop(self) -> None:
        """The server stops: what is under way is answered, and then the stream ends."""
        self._stopping = True
        self._end_if_done()

    # Requests

    def _begun(self, infer: GrpcInferCall, nothing: object = None) -> None:
        """A request has got to its model, or it was refused."""
        if not self._writable:
            # It was on its way already when reading was paused.
            infer.pause()

    def _on_refused(self, infer: GrpcInferCall, error: ServeError) -> None:
        self._refuse(infer, infer.envelope, error)
        self._read_or_not()

    # Responses

    def _refuse(self, infer: GrpcInferCall | None, envelope: Envelope, error: ServeError) -> None:
        """A request that never got to its model."""
        turn = self._under_way.pop(infer, None) if infer is not None else None
        parts = encode_stream_error(error.message, envelope.id, None, True)
        if turn is None and infer is None and self._turns:
            # Its model is not known; upstream keeps its place among the others.
            turn = _Turn()
            self._turns.append(turn)
        self._pass_on(turn, parts, [])
        self._end_if_done()

    def _on_response(self, infer: GrpcInferCall, response: Response) -> None:
        if self._closed:
            return
        turn = self._under_way.pop(infer) if response.final else self._under_way[infer]
        envelope = infer.envelope
        asked_for = (envelope.model_name, envelope.model_version)
        parts: Parts | Work | None = None
        blocks: list[Block] = []
        error = None if response.outputs else response.error
        if response.empty:
            if turn is not None:
                error = internal("expected a single response, got 0")
            elif infer.reply_format.empty_final:
                parts = encode_empty_final(envelope.id, asked_for)
        if error is None and not response.empty:
            try:
                parts = infer.message(response, True)
                if callable(parts):
                    parts = _or_error(parts, envelope.id, asked_for, response.final)
                blocks = held_blocks(response)
            except ServeError as wrong:
                error = wrong.with_traceback(None)  # for that knows this frame
        if error is not None:
            if self._strict:
                self._close(error.code.grpc_status, error.message)
                return
            parts = encode_stream_error(error.message, envelope.id, asked_for, response.final)
        if parts is not None:
            self._pass_on(turn, parts, blocks)
        if response.final:
            self._read_or_not()
            self._end_if_done()

    def _pass_on(self, turn: _Turn | None, parts: Parts | Work, blocks: list[Block]) -> None:
        turns = self._turns
        if turn is None or turn is turns[0]:
            self._send(parts, blocks)
            if turn is not None:
                turns.popleft()
                while turns and turns[0].parts is not None:
                    next_turn = turns.popleft()
                    assert next_turn.parts is not None
                    self._send(next_turn.parts, next_turn.blocks)
                    _drop(next_turn)
        else:
            turn.parts = parts
            turn.blocks = [block.hold() for block in blocks]

    def _send(self, parts: Parts | Work, blocks: list[Block]) -> None:
        call = self._call
        goes_on = call.send_in_steps(parts, blocks) if callable(parts) else call.send(parts, blocks)
        if not goes_on and self._writable:
            self._writable = False
            self._read_or_not()
            for infer in self._under_way:
                infer.pause()

    # The stream

    def _read_or_not(self) -> None:
        reading = self._writable and len(self._under_way) < MAX_UNDER_WAY and len(self._turns) < MAX_UNDER_WAY
        if reading != self._reading and not self._closed:
            self._reading = reading
            if reading:
                self._call.resume_reading()
            else:
                self._call.pause_reading()

    def _end_if_done(self) -> None:
        if not self._under_way and not self._closed:
            if self._half_closed:
                self._close(OK)
            elif self._stopping:
                self._close(UNAVAILABLE, STOPPING_TEXT)

    def _close(self, status: int, message: str = "") -> None:
        self._cancel_all()
        self._call.finish(status, message)

    def _cancel_all(self) -> None:
        self._closed = True
        under_way, self._under_way = self._under_way, {}
        self._jobs.drop()
        for infer in under_way:
            infer.cancel()
        for turn in self._turns:
            _drop(turn)
        self._turns.clear()


def _drop(turn: _Turn) -> None:
    for block in turn.blocks:
        block.drop()
    turn.blocks = []


def _or_error(work: Work, id: str, model: tuple[str, str], final: bool) -> Work:
    """As `work`, but an error becomes a message."""

    def made(keep: Keep) -> LongWork[Parts]:
        try:
            return (yield from work(keep))
        except ServeError as error:
            return encode_stream_error(error.message, id, model, final)

    return made
