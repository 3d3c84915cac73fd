"""ModelStreamInfer: any number of requests on one stream, also to different models.

Guarantees:
- requests enter their models in the order of their messages, however long the server works on one of them;
- responses of models that are not decoupled leave in the order of their requests; responses of decoupled models leave
  when they come, those of one request in order;
- an error is a message and ends neither the stream nor other requests. With the metadata `triton_grpc_error: true` the
  first error of a model's execution ends the stream, with its status; as upstream has it, an error of the server itself
  is a message even then;
- after the client's last request the stream ends with the last response; when the client is gone, everything under way
  is cancelled;
- memory is bounded: the server does not read from a client that does not read, or that has MAX_UNDER_WAY requests under
  way. Decoupled models that answer a client that does not read wait (`Request.pause`). What a client has sent by then,
  within its window (2 MiB), is still taken.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping

from stubserve.api.inference_server import InferenceServer
from stubserve.errors import ServeError, internal
from stubserve.grpc.infer import Position, StreamedInferCall, held_blocks
from stubserve.grpc.infer_decode import split
from stubserve.grpc.infer_encode import encode_empty_final, encode_stream_error
from stubserve.grpc.transport import OK, UNAVAILABLE, Answer, Handler, Keep, Making, Parts, Rpc, end_of
from stubserve.grpc.wire import Malformed
from stubserve.inference.long_work import LongWork, OrderedJobs
from stubserve.inference.request import Response
from stubserve.memory.blocks import Block

MAX_UNDER_WAY = 1024
STOPPING_TEXT = "GRPC server is shutting down and has stopped accepting new requests."


class ModelStreamInfer(Handler):
    """The handler of a ModelStreamInfer RPC. `strict` is the mode of `triton_grpc_error`."""

    def __init__(self, server: InferenceServer, rpc: Rpc, forwarded: Mapping[str, str] | None, strict: bool) -> None:
        self._server = server
        self._rpc = rpc
        self._forwarded = forwarded
        self._strict = strict
        # Requests under way, and the positions of those to models that are not decoupled
        self._under_way: dict[StreamedInferCall, None] = {}
        self._positions: deque[Position] = deque()
        # The work to be done before the next request may enter
        self._jobs = OrderedJobs(server.offload)
        self._closed = False
        self._half_closed = False
        self._writable = True
        self._reading = True
        self._stopping = False

    # Called by the transport

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        if self._closed:
            return
        try:
            envelope = split(data)
        except Malformed as malformed:
            self._close(malformed.status, malformed.text)
            return
        server = self._server
        call: StreamedInferCall | None = None
        try:
            model = server.find_model(envelope.model_name, envelope.model_version)
            call = StreamedInferCall(
                envelope, model, server, self._rpc, self._jobs, self._on_response, self._on_refused
            )
            self._under_way[call] = None
            if call.position is not None:
                self._positions.append(call.position)
            call.start(envelope, data, self._forwarded, block, offset)
            if self._jobs.busy:
                self._jobs.add(None, functools.partial(self._begun, call))
            else:
                self._begun(call)
        except Malformed as malformed:
            self._close(malformed.status, malformed.text)
        except Exception as error:
            self._refuse(call, envelope.id, end_of(error)[1])
        self._read_or_not()

    def on_half_close(self) -> None:
        self._half_closed = True
        self._end_if_done()

    def on_writable(self) -> None:
        self._writable = True
        self._read_or_not()
        for call in list(self._under_way):
            call.resume()

    def on_cancel(self) -> None:
        self._cancel_all()

    def stop(self) -> None:
        """Answers what is under way, then ends the stream."""
        self._stopping = True
        self._end_if_done()

    # Called by requests

    def _begun(self, call: StreamedInferCall, nothing: object = None) -> None:
        """A request has reached its model, or was refused."""
        if not self._writable:
            # Reading was paused when the request was on its way already.
            call.pause()

    def _on_refused(self, call: StreamedInferCall, error: ServeError) -> None:
        self._refuse(call, call.request_id, error.message)
        self._read_or_not()

    def _refuse(self, call: StreamedInferCall | None, id: str, text: str) -> None:
        """Answers a request that never reached its model."""
        if self._closed:
            return
        position = None
        if call is not None:
            del self._under_way[call]
            position = call.position
        elif self._positions:
            # The model of the request is not known; upstream keeps the position among the others.
            position = Position()
            self._positions.append(position)
        self._pass_on(position, encode_stream_error(text, id, None, True), [])
        self._end_if_done()

    def _on_response(self, call: StreamedInferCall, response: Response) -> None:
        if self._closed:
            return
        if response.final:
            del self._under_way[call]
        position, id, asked_for = call.position, call.request_id, call.asked_for
        answer: Answer | None = None
        blocks: list[Block] = []
        error = None if response.outputs else response.error
        if response.empty:
            if position is not None:
                error = internal("expected a single response, got 0")
            elif call.reply_format.empty_final:
                answer = encode_empty_final(id, asked_for)
        if error is None and not response.empty:
            try:
                answer = call.message(response, True)
                if callable(answer):
                    answer = _or_error(answer, id, asked_for, response.final)
                blocks = held_blocks(response)
            except ServeError as wrong:
                error = wrong.with_traceback(None)  # the traceback refers to this frame
        if error is not None:
            if self._strict:
                self._close(error.code.grpc_status, error.message)
                return
            answer = encode_stream_error(error.message, id, asked_for, response.final)
        if answer is not None:
            self._pass_on(position, answer, blocks)
        if response.final:
            self._read_or_not()
            self._end_if_done()

    def _pass_on(self, position: Position | None, answer: Answer, blocks: list[Block]) -> None:
        positions = self._positions
        if position is None or position is positions[0]:
            self._send(answer, blocks)
            if position is not None:
                positions.popleft()
                while positions and positions[0].answer is not None:
                    following = positions.popleft()
                    assert following.answer is not None
                    self._send(following.answer, following.blocks)
                    following.drop()
        else:
            position.answer = answer
            position.blocks = [block.hold() for block in blocks]

    def _send(self, answer: Answer, blocks: list[Block]) -> None:
        if not self._rpc.send(answer, blocks) and self._writable:
            self._writable = False
            self._read_or_not()
            for call in self._under_way:
                call.pause()

    # The stream

    def _read_or_not(self) -> None:
        reading = self._writable and len(self._under_way) < MAX_UNDER_WAY and len(self._positions) < MAX_UNDER_WAY
        if reading != self._reading and not self._closed:
            self._reading = reading
            if reading:
                self._rpc.resume_reading()
            else:
                self._rpc.pause_reading()

    def _end_if_done(self) -> None:
        if not self._under_way and not self._closed:
            if self._half_closed:
                self._close(OK)
            elif self._stopping:
                self._close(UNAVAILABLE, STOPPING_TEXT)

    def _close(self, status: int, message: str = "") -> None:
        self._cancel_all()
        self._rpc.finish(status, message)

    def _cancel_all(self) -> None:
        self._closed = True
        under_way, self._under_way = self._under_way, {}
        self._jobs.drop()
        for call in under_way:
            call.cancel()
        for position in self._positions:
            position.drop()
        self._positions.clear()


def _or_error(making: Making, id: str, model: tuple[str, str], final: bool) -> Making:
    """As `making`, but an error becomes a message."""

    def made(keep: Keep) -> LongWork[Parts]:
        try:
            return (yield from making(keep))
        except ServeError as error:
            return encode_stream_error(error.message, id, model, final)

    return made
