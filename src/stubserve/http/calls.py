"""The inference calls of one HTTP connection: each is started by the shortest way that fits, and answered.

- one whole request in one read, with a head that is known (`head`);
- any other, once the connection's reader has all of it.

There is one call at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from stubserve.api.access import AUTHORIZATION
from stubserve.api.access_log import log_answer
from stubserve.api.fair_queues import peer_name
from stubserve.errors import ServeError, internal
from stubserve.http.exchange import Exchange
from stubserve.http.generate import GenerateCall
from stubserve.http.head import RequestHead
from stubserve.http.infer import HttpInferCall
from stubserve.http.infer_encode import encode_error
from stubserve.http.reply import Reply
from stubserve.http.shared import Connections
from stubserve.http.state import BUSY
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapShare

log = logging.getLogger("stubserve.http")


class Calls:
    """The calls of `connection`."""

    __slots__ = ("_answered", "_began_ns", "_call", "_connection", "_received", "_server", "_shared")

    def __init__(self, connection: Exchange, shared: Connections) -> None:
        self._connection = connection
        self._shared = shared
        self._server = shared.server
        # The call that is under way
        self._call: HttpInferCall | GenerateCall | None = None
        # For the access log: when the request was complete, the size of its body, and the call whose answer is sent
        self._began_ns = 0
        self._received = 0
        self._answered: HttpInferCall | GenerateCall | None = None

    def close(self) -> None:
        """The client has closed the connection."""
        call, self._call = self._call, None
        if call is None:
            return
        if call.request is not None:
            log.debug("cancelling a request to model '%s': its client has closed the connection", call.model.name)
        call.cancel()

    def begin_known(self, data: bytes) -> bool:
        """Starts what is one whole request with a head that is known; False where it is none."""
        body_start = data.find(b"\r\n\r\n") + 4
        head = self._shared.heads.known(data[:body_start])
        if head is None or head.content_length != len(data) - body_start or head.chunked:
            return False
        connection = self._connection
        access = self._shared.access
        if access is not None and not access.admits(head):
            return False
        if head.infer is not None:
            connection.head = head
            connection.state = BUSY
            self.infer(data[body_start:], None, 0, None, True)
            return True
        if head.generate is None or not self._can_generate(head):
            return False
        connection.head = head
        connection.state = BUSY
        self._generate(data[body_start:], *head.generate)
        return True

    def _can_generate(self, head: RequestHead) -> bool:
        """Whether there is nothing about a request to `generate` that is uvicorn's, or its route's, to see to."""
        return (
            head.keep_alive
            and head.content_encoding is None
            and not head.expects_continue
            and head.content_length <= self._server.max_input_size
        )

    # Any request

    def infer(
        self,
        body: bytes | memoryview,
        block: Block | None,
        offset: int,
        share: HeapShare | None = None,
        at_once: bool = False,
    ) -> None:
        """Starts the call of the connection's head, as `Exchange.infer`.

        `at_once` says that nothing else waits on this connection.
        """
        head = self._connection.head
        assert head.infer is not None
        if self._shared.log_requests:
            self.log_request()
        if self._shared.log_answers:
            self._began_ns, self._received = time.monotonic_ns(), len(body)
        try:
            try:
                model = self._server.find_model(*head.infer)
            except ServeError:
                if share is not None:
                    share.drop()
                raise
            call = HttpInferCall(model, head, self._server, self._on_reply)
            self._call = call
            if self._server.fair_queues is not None:
                call.client = self._client()
            call.start(body, block, offset, share, at_once)
        except ServeError as error:
            self._fail(error)
        except Exception:
            self._fail(self._unexpected())

    def _generate(self, body: bytes, model: str, version: str) -> None:
        """Starts a call of `generate`; the same as `GenerateRoute` does, without what any request to an app costs."""
        if self._shared.log_requests:
            self.log_request()
        if self._shared.log_answers:
            self._began_ns, self._received = time.monotonic_ns(), len(body)
        try:
            context = self._connection.head.trace_context
            found = self._server.find_model(model, version)
            call = GenerateCall(found, self._server, False, self._on_generated, context)
            self._call = call
            if self._server.fair_queues is not None:
                call.client = self._client()
            call.start(body)
        except ServeError as error:
            self._fail(error)
        except Exception:
            self._fail(self._unexpected())

    def _client(self) -> Hashable:
        """Who asks, where clients are told apart."""
        ways = self._server.fair_queues
        assert ways is not None
        connection = self._connection
        return ways.client_of(self._peer(), lambda: connection.head.values(AUTHORIZATION))

    def _peer(self) -> str:
        return peer_name(self._connection.transport.get_extra_info("peername"))

    def log_request(self) -> None:
        """Logs the connection's request."""
        head = self._connection.head
        log.debug("HTTP request: %s %s", head.method.decode("latin-1"), head.target.decode("latin-1"))

    def log_answer(self, status: int, sent: int) -> None:
        """Has the access log tell of the connection's request, whose answer had so many bytes."""
        head = self._connection.head
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        model, version = head.infer or head.generate or ("", "")
        call, self._answered = self._answered, None
        names = {"model": model, "version": version, "id": "" if call is None else call.id}
        request = f"{method} {target} HTTP/1.1"
        log_answer(self._peer(), request, status, names, self._began_ns, self._received, sent)

    # Answers

    def _on_reply(self, reply: Reply) -> None:
        call, self._call = self._call, None
        if self._connection.state is BUSY:
            self._reply(call, reply)

    def _on_generated(self, call: GenerateCall) -> None:
        self._call = None
        if self._connection.state is BUSY:
            self._reply(call, call.reply())

    def _unexpected(self) -> ServeError:
        """Logs what is a fault of ours, from within an exception's handler; what the client is told of it."""
        head = self._connection.head
        route = head.infer or head.generate
        assert route is not None
        log.exception("a request to model '%s' failed inside the server", route[0])
        return internal("unexpected error while the request was handled; see the server's log")

    def _fail(self, error: ServeError) -> None:
        """The request at hand does not reach its model."""
        self._connection.state = BUSY
        call, self._call = self._call, None
        self._reply(call, encode_error(error))

    def _reply(self, call: HttpInferCall | GenerateCall | None, reply: Reply) -> None:
        if self._shared.log_answers:
            self._answered = call
        self._connection.reply(reply)
