"""One inference call over HTTP, from the body to the reply; the same for the connection class and for plain ASGI."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from stubserve.api import region_strings
from stubserve.api.forwarded_headers import HeaderForwarding
from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import BodyPlacer
from stubserve.api.reply_format import ReplyFormat
from stubserve.connections.arrival import Content
from stubserve.connections.offload import LARGE_BYTES
from stubserve.connections.sent_memory import stored
from stubserve.errors import ServeError, internal, unsupported
from stubserve.http.body import start as start_of_body
from stubserve.http.compression import Keep, Place, RestOfContent, choose, compress, compress_steps, decompress
from stubserve.http.infer_decode import decode, parse_header_length
from stubserve.http.infer_encode import encode, encode_error, encode_steps, is_large
from stubserve.http.message import Reply, RequestHead
from stubserve.inference.admission import admit_steps
from stubserve.inference.call import Call
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import drop_blocks
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.http")


class HttpInferCall(Call):
    """One call. `start` raises ServeError or ends, then or later, in one `on_reply(reply)`.

    The reply's blocks are only promised until `on_reply` returns. A small call is decoded, submitted and encoded at
    once; what is large is done in steps, or elsewhere, by a task of the call's own (see `protocols.offload`).
    """

    __slots__ = ("_head", "_on_reply", "_server", "_share", "_start_ns", "_task", "reply_format")

    protocol = "HTTP"

    def __init__(
        self, model: ServedModel, head: RequestHead, server: InferenceServer, on_reply: Callable[[Reply], None]
    ) -> None:
        super().__init__(model)
        self._head = head
        self._server = server
        self._on_reply = on_reply
        self._start_ns = time.monotonic_ns()
        # What is long about it is done by a task, and what it keeps in the heap is counted
        self._task: asyncio.Task[None] | None = None
        self._share: HeapShare | None = None

    def start(
        self,
        body: bytes | memoryview,
        block: Block | None,
        offset: int,
        share: HeapShare | None = None,
        at_once: bool = False,
    ) -> None:
        """Decodes, checks and submits. `body` is complete; if it lies in the arena, in `block` at arena `offset`.

        If it is counted in the heap's account, in `share`, which belongs to the call from now on. With `at_once` the
        answer may come before this returns.
        """
        head = self._head
        self._share = share
        try:
            if self.model.signature.decoupled:
                raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
            rest: RestOfContent | None = None
            if head.content_encoding is not None:
                content, rest = decompress(body, head.content_encoding, self._server.max_input_size, LARGE_BYTES)
                if content is not body:
                    body, block, offset = content, None, 0
            if rest is not None or self._is_long_to_read(body):
                if block is not None:
                    block.hold()
                self._task = asyncio.ensure_future(self._start_in_steps(body, block, offset, rest))
                return
            request, reply_format = self._decode(body, block, offset)
            if request.regions is not None and region_strings.are_left(request):
                self._task = asyncio.ensure_future(self._read_strings(request, reply_format))
                return
            self._submit(request, reply_format, at_once)
        except BaseException:
            self._forget()
            raise

    def trace_context(self) -> str | None:
        return self._head.trace_context()

    def cancel(self) -> None:
        """The client is gone."""
        if self._task is not None:
            self._task.cancel()
        super().cancel()

    def _is_long_to_read(self, body: bytes | memoryview) -> bool:
        """Whether a body is one that takes long to read: much JSON, or many strings. Raises ServeError."""
        if len(body) <= LARGE_BYTES:
            return False
        return self._text_length(body) > LARGE_BYTES or self.model.signature.has_strings

    def _text_length(self, body: bytes | memoryview) -> int:
        """How much of the body is JSON. Raises ServeError."""
        json_length = parse_header_length(self._head.header_length, len(body))
        return len(body) if json_length is None else json_length

    def _decode(self, body: bytes | memoryview, block: Block | None, offset: int) -> tuple[Request, ReplyFormat]:
        server = self._server
        json_length = parse_header_length(self._head.header_length, len(body))
        if (len(body) if json_length is None else json_length) > FREE_BYTES and self._share is None:
            self._share = server.heap.share()
        return decode(
            body,
            json_length,
            self.model.signature,
            block,
            offset,
            server.store,
            server.max_input_size,
            server.regions,
        )

    async def _start_in_steps(
        self, body: bytes | memoryview, block: Block | None, offset: int, rest: RestOfContent | None
    ) -> None:
        try:
            await self._submit_later(self._decode_in_steps(body, block, offset, rest))
        finally:
            if block is not None:
                block.drop()

    async def _read_strings(self, request: Request, reply_format: ReplyFormat) -> None:
        """Submits a request with many strings in its client's shared memory."""
        await self._submit_later(self._admit_strings(request, reply_format))

    async def _admit_strings(self, request: Request, reply_format: ReplyFormat) -> tuple[Request, ReplyFormat]:
        """The request, admitted. Raises ServeError, and then nothing is held."""
        try:
            await self._server.offload.run(region_strings.read(request, self._server.block))
            await self._server.offload.run(admit_steps(request, self.model.signature))
        except BaseException:
            drop_blocks(request.inputs)
            raise
        return request, reply_format

    async def _submit_later(self, admitting: Coroutine[Any, Any, tuple[Request, ReplyFormat]]) -> None:
        """Submits a request once it is admitted, or answers why it is not."""
        try:
            request, reply_format = await admitting
            self._task = None
            self._submit(request, reply_format)
        except asyncio.CancelledError:
            self._forget()
            raise
        except Exception as error:
            self._forget()
            self._on_reply(encode_error(as_answer(error, self.model.signature.model)))

    async def _decode_in_steps(
        self, body: bytes | memoryview, block: Block | None, offset: int, rest: RestOfContent | None
    ) -> tuple[Request, ReplyFormat]:
        """The request, admitted. Raises ServeError, and then nothing is held."""
        if rest is None:
            return await self._read_in_steps(body, block, offset)
        content = Content(self._server.arrivals.memory, self._server.max_input_size, start_of_body(self._head))
        try:
            await self._server.offload.run(rest(content.add))
            return await self._read_in_steps(content.finish(), content.block, content.offset)
        finally:
            content.drop()

    async def _read_in_steps(
        self, body: bytes | memoryview, block: Block | None, offset: int
    ) -> tuple[Request, ReplyFormat]:
        server = self._server
        head = self._head
        size = self._text_length(body)
        if LARGE_BYTES < size <= server.max_input_size:
            self._share = self._share or server.heap.share()
            placer = BodyPlacer(body, block, offset, server.store, server.regions)
            request, reply_format = await server.large_json.read_infer(
                memoryview(body)[:size], self.model.signature, placer, server.max_input_size, block
            )
        else:
            request, reply_format = self._decode(body, block, offset)
        try:
            await server.offload.run(region_strings.read(request, server.block))
            if head.infer is not None:
                self.model = server.find_model(*head.infer)  # it may have been loaded anew meanwhile
            await server.offload.run(admit_steps(request, self.model.signature))
        except BaseException:
            drop_blocks(request.inputs)
            raise
        return request, reply_format

    def _submit(self, request: Request, reply_format: ReplyFormat, at_once: bool = False) -> None:
        """Raises ServeError, and then nothing is held."""
        request.on_response = self.on_response
        request.request_start_ns = self._start_ns
        request.texts_as_json = reply_format.all_json
        self.reply_format = reply_format
        try:
            if self._server.http_forwarding is not None:
                self._forward_headers(request, self._server.http_forwarding)
            if self._share is not None:
                # From here on it keeps what it is made of, and no longer what that was read from.
                self._share.drop()
                self._share.add(kept_by(request))
        except BaseException:
            self.give_up(request)
            raise
        self.submit(request, at_once=at_once)

    def _forget(self) -> None:
        """Nothing of the request is kept any longer."""
        self._task = None
        share, self._share = self._share, None
        if share is not None:
            share.drop()

    def _forward_headers(self, request: Request, forwarding: HeaderForwarding) -> None:
        headers = [(name.decode("latin-1"), value) for name, value in self._head.headers]
        request.parameters = {**(request.parameters or {}), **forwarding.parameters(headers)}

    def respond(self, request: Request, response: Response) -> None:
        if response.error is None and is_large(request, response, self.reply_format, self._head.accept_encoding):
            blocks = [tensor.block.hold() for tensor in response.outputs if tensor.block is not None]
            self._task = asyncio.ensure_future(self._reply_in_steps(request, response, blocks))
            return
        if self._share is not None:
            self._forget()
        self._on_reply(reply_to(request, response, self.model, self._head, self.reply_format))

    async def _reply_in_steps(self, request: Request, response: Response, blocks: list[Block]) -> None:
        share = self._share = self._share or self._server.heap.share()
        place = partial(stored, self._server.store)
        steps = reply_steps(request, response, self.model, self._head, self.reply_format, blocks, share.add, place)
        try:
            reply = await self._server.offload.run(steps)
            self._forget()
            self._on_reply(reply)
        except asyncio.CancelledError:
            self._forget()
            raise
        except Exception as error:
            self._forget()
            self._on_reply(encode_error(as_answer(error, self.model.signature.model)))
        finally:
            for block in blocks:
                block.drop()


def as_answer(error: Exception, model: str) -> ServeError:
    """What a client is told of an error; what is a fault of ours is logged. Called while the error is handled."""
    if isinstance(error, ServeError):
        return error
    log.exception("a request to model '%s' failed inside the server", model)
    return internal("unexpected error while the request was handled; see the server's log")


def reply_to(
    request: Request, response: Response, model: ServedModel, head: RequestHead, reply_format: ReplyFormat
) -> Reply:
    """The reply that carries a model's response, or says why it cannot."""
    if response.error is not None:
        return encode_error(response.error)
    try:
        reply = encode(request, response, model.signature, reply_format)
        reply.blocks = [tensor.span.block for tensor in response.outputs if tensor.span is not None]
        if head.accept_encoding is not None:
            coding = choose(head.accept_encoding)
            if coding is not None:
                reply.parts = compress(reply.parts, coding)
                reply.headers = (("Content-Encoding", coding),)
                reply.blocks = ()
    except ServeError as error:
        return encode_error(error)
    except Exception:
        log.exception("the answer of model '%s' could not be encoded", model.signature.model)
        return encode_error(internal("unexpected error while the answer was encoded; see the server's log"))
    return reply


def reply_steps(
    request: Request,
    response: Response,
    model: ServedModel,
    head: RequestHead,
    reply_format: ReplyFormat,
    blocks: Sequence[Block],
    keep: Keep,
    place: Place,
) -> LongWork[Reply]:
    """The reply that carries a large response, which lies in `blocks`; what it makes lies where `place` puts it.

    Calls `keep(nbytes)` with what it keeps in the heap meanwhile. Raises ServeError.
    """
    reply = yield from encode_steps(request, response, model.signature, reply_format, keep, place)
    if reply.json_length is not None:
        reply.blocks = blocks
    coding = None if head.accept_encoding is None else choose(head.accept_encoding)
    if coding is not None:
        reply.parts = yield from compress_steps(reply.parts, coding, place)
        reply.headers = (("Content-Encoding", coding),)
        reply.blocks = ()
    return reply
