"""The calls to a model for one request to OpenAI's routes: calls of `generate` whose responses become OpenAI's JSON.

A request asks the model once, or once for each choice (`n`), prompt or batch of texts. Each of these is a call with a
writer. The first call leads: it collects the events of all of them for the client, and is complete when all are. It
fails when one fails, and then the others are cancelled.

An error that comes before anything has been sent is the answer, with its own status. Later it is the stream's last
event, and there is no `[DONE]`.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from stubserve.api.inference_server import InferenceServer
from stubserve.errors import Code, ServeError, invalid
from stubserve.http.generate import PENDING_BYTES, GenerateCall
from stubserve.http.generate_encode import is_large
from stubserve.http.message import RequestHead
from stubserve.http.openai.errors import error_document
from stubserve.http.openai.model_requests import ModelRequest
from stubserve.http.openai.writer import Form, Writer, document, usage
from stubserve.inference.call import Call
from stubserve.inference.long_work import finish
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.memory.heap_account import FREE_BYTES

# Questions that are submitted in one pass of the event loop
_AT_ONCE = 16
_DONE = b"data: [DONE]\n\n"


class OpenAiCall(GenerateCall):
    """One call to the model. Without a `lead` it leads, and knows the other calls of the request until it is complete.

    `failure` is why the request has failed, once it has.
    """

    def __init__(
        self,
        model: ServedModel,
        server: InferenceServer,
        form: Form,
        writer: Writer,
        lead: OpenAiCall | None,
        head: RequestHead,
    ) -> None:
        super().__init__(model, head, server, form.streamed)
        self._form = form
        self._writer = writer
        self._tokens = writer.usage.tokens
        self._lead = lead
        self._others: list[OpenAiCall] = []
        self.failure: ServeError | None = None
        # The JSON of this call's choice, where there is no stream; the number of calls that the model has not answered
        self._written: list[bytes] = []
        self._open = 1
        self._has_ended = False
        # When the last text came; 0 before the first
        self._said_ns = 0
        if lead is not None:
            lead._others.append(self)
            lead._open += 1
            self.news = lead.news

    async def ask(self, requests: Sequence[ModelRequest]) -> None:
        """Submits the requests, one for each part, and waits until the model has them all. Raises ServeError."""
        parts = (self, *self._others)
        for number, (part, request) in enumerate(zip(parts, requests, strict=True), 1):
            if self.gone or self.complete:
                return
            if sum(len(one) for one in request.members.values() if isinstance(one, str)) > FREE_BYTES:
                part.share()
            try:
                part._texts.add(len(request.echoed))
                part.start({**request.members, "id": self._form.id})
            except ServeError as error:
                # What `generate` finds wrong in the members is the client's fault, whatever code upstream has for it.
                raise invalid(error.message) if error.code is Code.MALFORMED else error from None
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        await self.until(lambda: self.complete or all(part._is_submitted or part._refusal for part in parts))
        refusals = [part._refusal for part in parts if part._refusal is not None]
        if refusals:
            raise refusals[0]

    async def answered(self) -> None:
        """Waits until something can be sent, or, where there is no stream, until all can. Raises ServeError."""
        await self.until(lambda: self.status if self._streamed else self.complete)
        failure, self.failure = self.failure, None
        if failure is not None and not self._pending:
            try:
                raise failure
            finally:
                del failure  # the error refers to this frame

    def body(self) -> list[bytes]:
        """The answer, where there is no stream, in pieces."""
        parts = (self, *self._others)
        made = document(self._form, [part._writer for part in parts], [part._written for part in parts])
        self.cancel()
        return made

    def cancel(self) -> None:
        """The client has gone, or has its answer."""
        for part in self._others:
            part.gone = True
            part._texts.drop()
            Call.cancel(part)
        self._others.clear()
        super().cancel()

    def caught_up(self) -> None:
        super().caught_up()
        for part in self._others:
            GenerateCall.caught_up(part)

    def respond(self, request: Request, response: Response) -> None:
        if self._is_over():
            return
        is_large_one = response.error is None and is_large(response)
        if is_large_one:
            request.pause()
        if is_large_one or (self.jobs is not None and self.jobs.busy):
            self.make_later(self._writer.read(response), response, partial(self._taken, request, response))
            return
        made: list[bytes] | ServeError
        try:
            made = finish(self._writer.read(response))
        except Exception as raised:
            made = self.as_answer(raised, encoding=True)
        self._taken(request, response, made)

    def _is_over(self) -> bool:
        """Whether nothing of the model is wanted any longer."""
        return self.gone or self._has_ended or (self._lead or self).complete

    def _taken(self, request: Request, response: Response, made: list[bytes] | ServeError) -> None:
        """A response has been read; `made` is what it adds to the answer."""
        if self._is_over():
            return
        lead = self._lead or self
        if response.error is not None:
            made = response.error
        if isinstance(made, ServeError):
            lead.fail(made.with_traceback(None))
            return
        try:
            self._keep(made, sum([tensor.nbytes for tensor in response.outputs]))
            writer = self._writer
            if writer.says:
                self._said_ns = self._tokens.count_piece(request.request_start_ns, self._said_ns)
            if response.final or writer.over:
                self._has_ended = True
                self._keep(writer.end())
                self._tokens.count_answer(request.request_start_ns)
        except Exception as raised:
            lead.fail(self.as_answer(raised, encoding=True))
            return
        if self._has_ended:
            if not response.final:
                self._cancel_soon()
            lead.ended()
        elif lead._pending_bytes > PENDING_BYTES:
            request.pause()
        else:
            GenerateCall.caught_up(self)

    def _keep(self, made: list[bytes], nbytes: int = 0) -> None:
        """Keeps pieces of the answer, made of so many bytes, for the client. Raises ServeError (503).

        Where there is no stream, a writer may keep what it reads until the end.
        """
        size = sum(map(len, made))
        if not self._streamed:
            self._texts.add(max(nbytes, size))
            self._written += made
        elif size:
            lead = self._lead or self
            lead._texts.add(size)
            lead.send(made)

    def send(self, events: list[bytes]) -> None:
        """Passes events on to the client. Only for a call that leads."""
        self._pending += events
        self._pending_bytes += sum(map(len, events))
        self.status = self.status or 200
        assert self.news is not None
        self.news.set()

    def ended(self) -> None:
        """One more part has ended. Only for a call that leads."""
        self._open -= 1
        if self._open:
            return
        if self._streamed:
            if self._form.includes_usage:
                told = self._form.usage_event(usage([self._writer, *[part._writer for part in self._others]]))
                self.send([told])
            self.send([_DONE])
        self._complete(200)

    def fail(self, error: ServeError) -> None:
        """A part has failed, and with it the request. Only for a call that leads."""
        self.failure = error
        if self._streamed and self.status:
            self.send([b"data: %b\n\n" % error_document(error)])
        self._cancel_soon()
        for part in self._others:
            part._cancel_soon()
        self._complete(error.code.http_status)

    def _complete(self, status: int) -> None:
        self.status = self.status or status
        self.complete = True
        if self._streamed:
            # The parts refer to this call, which only the garbage collector could free otherwise.
            for part in self._others:
                part._texts.drop()
            self._others.clear()
        assert self.news is not None
        self.news.set()

    def _cancel_soon(self) -> None:
        """Cancels the request; later, since its response may be one of many that are being handed out."""
        asyncio.get_running_loop().call_soon(Call.cancel, self)
