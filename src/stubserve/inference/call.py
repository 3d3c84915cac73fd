"""A request's way to its model and back: submitted once, answered once.

Every way in (HTTP, gRPC, `generate`, a model that calls another) makes a call of it. Guarantees:

- `submit` returns, and then responses come until one is final; or it raises, and then nothing of the request is left:
  its inputs' memory is dropped, the call has forgotten it, and no response will come. Only a caller that is ready
  for that (`at_once`) may be answered before it returns;
- what it raises is a ServeError. Anything else is a fault of the server's: it is logged, and refused as INTERNAL;
- `respond` hears nothing after the final response, and nothing after the call was given up, so nobody is answered
  twice;
- call and request know each other only while the request is under way, for otherwise only the garbage collector could
  free them.

A base class: its two attributes and three methods cost a request one Python call more than code in every protocol did.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from stubserve.errors import ServeError, internal
from stubserve.inference.admission import admit
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import drop_blocks
from stubserve.inference.trace import QUEUE_INPUT

log = logging.getLogger("stubserve.inference")


class Call:
    """A call to `model`. `request` is the one that is under way, None before and after; `id` is its id, also after.

    `client` is who asks, where clients are told apart.
    """

    __slots__ = ("client", "id", "model", "request")

    # Whose requests these are, for traces: "HTTP" or "GRPC" those of clients, empty the server's own
    protocol = ""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.request: Request | None = None
        self.id = ""
        self.client: Hashable = None

    def admit(self, request: Request) -> None:
        """Checks a request against the model; `submit` need not be called first. Raises ServeError as `submit` does."""
        try:
            admit(request, self.model.signature)
        except Exception as raised:
            raise self._refused(request, raised) from None

    def submit(self, request: Request, together: bool = False, at_once: bool = False) -> None:
        """Checks a request if that has not been done, and queues it; its `on_response` is this call's.

        `together` says that the caller polls the model when it has queued all that it has; `at_once` that an answer
        which is there already may come before this returns. Raises ServeError.
        """
        self.request = request
        self.id = request.id
        if self.client is not None:
            request.client = self.client
        sampler = self.model.tracing.sampler
        if sampler is not None and self.protocol:
            request.trace = sampler.sample(self)
        try:
            if request.trace is not None:
                request.trace.keep(QUEUE_INPUT, request.inputs)
            if not request.admitted:
                admit(request, self.model.signature)
            if together:
                self.model.enqueue(request)
            else:
                self.model.submit(request, at_once)
        except Exception as raised:
            raise self._refused(request, raised) from None

    def give_up(self, request: Request) -> None:
        """Forgets a request that has not been submitted."""
        self.request = None
        drop_blocks(request.inputs)
        if request.trace is not None:
            request.trace.end(request)

    def trace_context(self) -> str | None:
        """The value of `traceparent` that the client sent along."""
        return None

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        if self.request is not None:
            self.model.cancel(self.request)

    def on_response(self, request: Request, response: Response) -> None:
        """For the request's `on_response`."""
        if request is not self.request:
            return
        if response.final:
            self.request = None
        self.respond(request, response)

    def respond(self, request: Request, response: Response) -> None:
        """Passes a response on. The request is forgotten already if it is the final one."""
        raise NotImplementedError

    def _refused(self, request: Request, raised: Exception) -> ServeError:
        self.give_up(request)
        if isinstance(raised, ServeError):
            return raised
        log.error("a request to model '%s' could not be submitted", self.model.signature.model, exc_info=raised)
        return internal("unexpected error while the request was handled; see the server's log")
