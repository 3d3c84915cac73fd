"""`generate` and `generate_stream`: one JSON answer, or any number of server-sent events.

Responses are encoded as they come, for their memory is only promised that long, and collected; whoever writes to the
client takes all that there is with one write. So a fast model costs a wake-up and a system call per handful of
responses. When more than PENDING_BYTES wait for a client that reads too slowly, the model is made to wait
(`Request.pause`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time

from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from stubserve.errors import ServeError, internal, unsupported
from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.protocols.http import json_text
from stubserve.protocols.http.generate_decode import decode_generate
from stubserve.protocols.http.infer_encode import json_array
from stubserve.protocols.http.reply import JSON
from stubserve.protocols.serving import Ingress

log = logging.getLogger("stubserve.http")

PENDING_BYTES = 64 << 10

_NOT_ONE = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)


class GenerateCall(Call):
    """One call. `start` raises ServeError, or responses come in until `complete`; `news` is set with each."""

    def __init__(self, model: ServedModel, ingress: Ingress, streamed: bool) -> None:
        super().__init__(model)
        self._ingress = ingress
        self._streamed = streamed
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._responses = 0
        # HTTP status by the first response, 0 before it
        self.status = 0
        self.complete = False
        self.gone = False
        self.news = asyncio.Event()

    def start(self, body: bytes) -> None:
        """Decodes, checks and submits."""
        request = decode_generate(body, self.model.signature, self._ingress.store)
        request.on_response = self.on_response
        request.request_start_ns = time.monotonic_ns()
        self.submit(request)

    def cancel(self) -> None:
        """The client is gone."""
        self.gone = True
        self._pending.clear()
        self.news.set()
        super().cancel()

    def take(self) -> bytes:
        """All events that have come since the last call."""
        self.news.clear()
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        return data

    def caught_up(self) -> None:
        """What was taken has been written."""
        if self.request is not None:
            self.request.resume()

    def answer(self) -> bytes:
        """The body of `generate`, once it is complete."""
        return self._pending[0] if self._responses == 1 else _NOT_ONE

    def respond(self, request: Request, response: Response) -> None:
        if response.error is not None and response.outputs and self._streamed:
            # What the model had sent before it failed is an event of its own.
            self.respond(request, Response(response.outputs, response.parameters, final=False))
        if response.final:
            self.complete = True
        if not response.empty and not self.gone:
            self._responses += 1
            error: ServeError | None = response.error
            document = b""
            # Of one answer only the first response is of interest, and whether there were more.
            if self._streamed or self._responses == 1:
                try:
                    if error is None:
                        document = encode_document(request, response, self.model.signature)
                except ServeError as unfit:
                    error = unfit
                except Exception:
                    log.exception("a response of model '%s' could not be encoded", self.model.signature.model)
                    error = internal("unexpected error while the answer was encoded; see the server's log")
                if error is not None:
                    document = b'{"error":%b}' % json_text.string(error.message)
                self._add(request, document)
            # Upstream has one status for all that goes wrong from here on.
            self.status = self.status or (200 if error is None else 400)
        elif response.final:
            self.status = self.status or 200
        self.news.set()

    def _add(self, request: Request, document: bytes) -> None:
        if not self._streamed:
            self._pending.append(document)
            return
        self._pending.append(b"data: %b\n\n" % document)
        self._pending_bytes += len(document)
        if self._pending_bytes > PENDING_BYTES:
            request.pause()


def encode_document(request: Request, response: Response, signature: Signature) -> bytes:
    """A response as a flat JSON object, members in alphabetical order. Raises ServeError for what JSON cannot say."""
    members = {"model_name": _string(signature.model), "model_version": b'"%d"' % signature.version}
    if request.id:
        members["id"] = json_text.string(request.id)
    for name, value in (response.parameters or {}).items():
        if not isinstance(value, str | bool | int | float):
            raise unsupported("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
        members[name] = json_text.scalar(value)
    for tensor in response.outputs:
        array = json_array(tensor)
        single = True
        for size in tensor.shape:
            if size != 1:
                single = False
        members[tensor.name] = array[1:-1] if single else array
    return b"{%b}" % b",".join([b"%b:%b" % (_string(name), members[name]) for name in sorted(members)])


@functools.lru_cache(maxsize=4096)
def _string(text: str) -> bytes:
    return json_text.string(text)


async def generate(call: GenerateCall) -> HttpResponse:
    """The one answer of a started call."""
    while not call.complete and not call.gone:
        call.news.clear()
        await call.news.wait()
    response = HttpResponse(b"" if call.gone else call.answer(), call.status or 200, media_type=JSON)
    # In chunks, as upstream.
    del response.headers["content-length"]
    return response


class EventStream(HttpResponse):
    """The events of a started call; the status is the first one's."""

    def __init__(self, call: GenerateCall, watching: asyncio.Task[None]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._call = call
        self._watching = watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        try:
            while not call.status and not call.gone:
                call.news.clear()
                await call.news.wait()
            await send({"type": "http.response.start", "status": call.status or 200, "headers": self.raw_headers})
            complete = False
            while not complete and not call.gone:
                complete = call.complete
                data = call.take()
                if data or complete:
                    await send({"type": "http.response.body", "body": data, "more_body": not complete})
                    call.caught_up()
                else:
                    await call.news.wait()
        finally:
            self._watching.cancel()
