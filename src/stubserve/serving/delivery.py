"""The way back: from a model's or the server's answer to the client; and whether anything is still under way.

Guarantees:

- each request that `expect` was called for gets exactly one final response. Later responses are dropped, and logged;
- with an order to be kept (`preserve_ordering`), responses go out in the order in which requests were expected;
- the blocks of outputs are dropped when the reader has had them, those of inputs after the final response;
- nothing here raises. A fault of the server becomes an error for its one request, and a line in the log. It never
  counts as a fault of the stub that answered.

**Credit.** A stub sends a group of responses and waits for the message that they have been delivered
(`when_delivered`). If a response is held back behind another request's, that message must wait, or a fast stream fills
the arena while an earlier request takes its time. It must not wait if the response would then wait for itself: a model
that answers the requests of one batch in turn never finishes the first of them if it is stopped at the second, and a
request that is still queued may need this very instance. So a response waits only while all requests in front of it are
executing, and not in the batch that its own stub is executing. The responses of a request whose client is gone are
dropped as they come.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.admission import reshape_outputs
from stubserve.inference.latencies import Latencies
from stubserve.inference.request import REJECTED, Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import drop_blocks
from stubserve.inference.trace import BACKEND_OUTPUT, Trace
from stubserve.schedulers.ordering import ResponseOrderer

log = logging.getLogger("stubserve.model")


class Delivery:
    """Passes on the answers to one model version's requests, and counts them.

    `under_way` are the requests without a final response, and all else that keeps the model from being taken down.
    """

    def __init__(self, signature: Signature, statistics: ModelStatistics, keep_order: bool = False) -> None:
        self.under_way = 0
        # Whether `drained` waits for zero, and the event for that
        self._awaited = False
        self._drained = asyncio.Event()
        self.latencies: Latencies | None = None
        self._signature = signature
        self._statistics = statistics
        self._orderer = ResponseOrderer() if keep_order else None
        # Passes a model's answer on. Most answers go out as they come, and this saves a call
        self.respond: Callable[[Request, Response], None] = self._pass_on
        if self._orderer is not None or signature.reshaped_outputs:
            self.respond = self._shape_and_pass_on
        # Traced requests that are answered before their batch is over
        self._traced: list[Request] = []
        # To be called once the responses of a request that are held back have been passed on
        self._owed: dict[Request, list[Callable[[], None]]] = {}

    def expect(self, request: Request) -> None:
        """A request has been queued, and will be answered."""
        self.under_way += 1
        if self._orderer is not None:
            self._orderer.expect(request)

    def cancelled(self, request: Request) -> None:
        """The client waits no longer: responses that are held back are dropped."""
        if self._orderer is not None:
            for response in self._orderer.held(request):
                _drop(response)
            for act in self._owed.pop(request, ()):
                request.when_read(act)

    def refused(self, request: Request, refusal: ServeError) -> None:
        """Counts a request that the queue has not taken. As upstream, not one that does not fit this model."""
        if refusal.code is not Code.INVALID_ARG:
            request.outcome = REJECTED
            self._statistics.record_failure(request)

    # Answers

    def _shape_and_pass_on(self, request: Request, response: Response) -> None:
        if self._signature.reshaped_outputs:
            try:
                reshape_outputs(response, self._signature)
            except Exception:
                log.exception("an answer of model '%s' could not be given its shape", self._signature.model)
                _drop(response)
                response.error = internal("unexpected error in the answer's shapes; see the server's log")
        self.pass_on(request, response)

    def respond_streamed(self, request: Request, response: Response, start_ns: int) -> None:
        """Passes on a response that the model has sent through a response sender at `start_ns`."""
        if self._signature.decoupled:
            try:
                self._statistics.record_response(request, response, start_ns)
            except Exception:
                log.exception("a response of model '%s' could not be counted", self._signature.model)
        self.respond(request, response)

    def fail(self, requests: Iterable[Request], error: ServeError, outcome: str | None) -> None:
        """Answers requests with an error; with an `outcome` they are counted, as failures without an execution."""
        for request in requests:
            if outcome is not None:
                request.outcome = outcome
                self._statistics.record_failure(request)
            if request.trace is not None:
                request.trace.cut_off = True
            self.pass_on(request, Response(error=error))

    def pass_on(self, request: Request, response: Response) -> None:
        """Passes on a response with outputs that already have the shape that clients expect."""
        if self._orderer is None:
            self._pass_on(request, response)
        else:
            self._pass_on_in_order(self._orderer, request, response)

    def executed(self, requests: Sequence[Request], empty: int = 0) -> None:
        """Counts an executed batch with `empty` empty places."""
        if self._traced:
            self.end_traces(requests)
        try:
            self._statistics.record_batch(requests, empty)
            if self.latencies is not None:
                self.latencies.on_batch(requests)
        except Exception:
            log.exception("a batch of model '%s' could not be counted", self._signature.model)

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        """Calls `act` when the reader of `request` has had all responses so far, and has kept up.

        `batch` are the requests of its batch while that is being executed.
        """
        ahead = self._orderer.ahead_of(request) if self._orderer is not None and not request.cancelled else ()
        if ahead and all(other.compute_start_ns and other not in batch for other in ahead):
            self._owed.setdefault(request, []).append(act)
        else:
            request.when_read(act)

    def _pass_on_in_order(self, orderer: ResponseOrderer, request: Request, response: Response) -> None:
        if request.cancelled:
            _drop(response)
        try:
            released = orderer.complete(request, response)
        except (KeyError, ValueError):
            log.exception("a request of model '%s' was answered after its final response", self._signature.model)
            _drop(response)
            return
        for one, its_response in released:
            self._pass_on(one, its_response)
            if self._owed:
                for act in self._owed.pop(one, ()):
                    one.when_read(act)

    def end_traces(self, requests: Collection[Request] | None = None) -> None:
        """Ends the traces that waited for the end of a batch of these requests; all of them for None."""
        waiting, self._traced = self._traced, []
        for request in waiting:
            if requests is None or request in requests:
                self._end_trace(request)
            else:
                self._traced.append(request)

    def _end_trace(self, request: Request) -> None:
        try:
            request.end_trace()
        except Exception:
            log.exception("a trace of model '%s' is lost", self._signature.model)

    def _trace_answer(self, trace: Trace, response: Response) -> None:
        if response.final:
            trace.answered_ns = time.monotonic_ns()
        if response.error is not None:
            trace.error = response.error.message
        try:
            trace.capture(BACKEND_OUTPUT, response.outputs)
        except Exception:
            log.exception("outputs of model '%s' could not be traced", self._signature.model)

    def _pass_on(self, request: Request, response: Response) -> None:
        trace = request.trace
        if trace is not None:
            self._trace_answer(trace, response)
        if self.latencies is not None:
            try:
                self.latencies.on_response(request, response)
            except Exception:
                log.exception("a response of model '%s' could not be counted", self._signature.model)
        try:
            request.on_response(request, response)
        except Exception:
            log.exception("the answer to a request of model '%s' could not be passed on", self._signature.model)
        for tensor in response.outputs:
            if tensor.span is not None:
                tensor.span.drop()
        if response.final:
            for tensor in request.inputs:
                if tensor.span is not None:
                    tensor.span.drop()
            if trace is not None:
                trace.sent_ns = time.monotonic_ns()
                if request.compute_start_ns and not request.compute_end_ns and not trace.cut_off:
                    self._traced.append(request)  # its sender was faster than the result of its batch
                else:
                    self._end_trace(request)
            self.under_way -= 1
            if self._awaited:
                self._tell()

    # What is under way

    def reserve(self) -> None:
        """The model is still needed, until `release`."""
        self.under_way += 1

    def release(self) -> None:
        self.under_way -= 1
        if self._awaited:
            self._tell()

    def _tell(self) -> None:
        if not self.under_way:
            self._awaited = False
            self._drained.set()

    async def drained(self) -> None:
        """Waits until nothing is under way."""
        while self.under_way:
            self._awaited = True
            self._drained.clear()
            await self._drained.wait()

    async def drained_unless_hung(self, running: Callable[[], Mapping[str, int]], patience_s: float) -> bool:
        """As `drained`. With a patience, returns False once a batch has been executing for all of that time.

        `running` returns the numbers of the batches that are being executed, by the names of their instances.
        """
        if not patience_s:
            await self.drained()
            return True
        while True:
            before = running()
            try:
                await asyncio.wait_for(self.drained(), patience_s)
            except asyncio.TimeoutError:
                hung = [name for name, batch in running().items() if before.get(name) == batch]
                if hung:
                    log.error("instance '%s' has not finished a batch for %.1f s and is ended", hung[0], patience_s)
                    return False
            else:
                # A request may have come while the wait was ending.
                if not self.under_way:
                    return True


def _drop(response: Response) -> None:
    """Drops the outputs of a response; its final flag and its error stay."""
    drop_blocks(response.outputs)
    response.outputs = []
