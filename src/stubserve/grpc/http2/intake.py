"""Messages of one stream that something has to be done to before its handler gets them.

Compressed ones are decompressed, and large ones prepared as their method wants it (`turn`). What that takes long for
is done in steps (`jobs`), and whatever follows waits for its turn, small or large.
"""

from __future__ import annotations

import functools
import logging
from typing import Protocol

from stubserve.api.inference_server import InferenceServer
from stubserve.errors import ServeError
from stubserve.grpc.http2.inbox import Message, MessageRefusal
from stubserve.grpc.http2.turn import Turn
from stubserve.grpc.transport import INTERNAL, Prepare
from stubserve.grpc.wire import Malformed
from stubserve.inference.long_work import OrderedJobs

log = logging.getLogger("stubserve.grpc")


class MessageTaker(Protocol):
    """What an intake tells its stream."""

    def take(self, message: Message) -> None:
        """A message, in its turn. It is promised until this returns."""
        ...

    def refuse(self, refusal: MessageRefusal) -> None:
        """A message that could not be taken."""
        ...

    def ended_by_client(self) -> None:
        """No message follows."""
        ...

    def grant(self) -> None:
        """The client may go on: no message waits any more."""
        ...


class Intake:
    """The intake of one stream."""

    __slots__ = ("_dropped", "_end_is_due", "_jobs", "_prepare", "_server", "_taker")

    def __init__(self, server: InferenceServer, prepare: Prepare | None, taker: MessageTaker) -> None:
        self._server = server
        self._prepare = prepare
        self._taker = taker
        self._jobs = OrderedJobs(server.offload)
        self._end_is_due = False
        self._dropped = False

    @property
    def busy(self) -> bool:
        """Whether a message waits, and all that follow have to."""
        return self._jobs.busy

    def add(self, message: Message) -> None:
        """Takes a complete message. Raises MessageRefusal."""
        turn = Turn(self._server, self._prepare, message)
        busy = self._jobs.busy
        try:
            steps = turn.begin()
            if busy or steps is not None:
                turn.wait()
        except (MessageRefusal, ServeError, Malformed) as error:
            turn.end()
            raise _refusal(error) from None
        if busy or steps is not None:
            self._jobs.add(steps, functools.partial(self._prepared, turn))
        else:
            self._pass_on(turn)

    def end(self) -> None:
        """The last message has come; the stream is told so in its turn."""
        self._end_is_due = True

    def drop(self) -> None:
        """Nobody wants them any more."""
        self._dropped = True
        self._jobs.drop()

    def _prepared(self, turn: Turn, error: BaseException | None) -> None:
        """Everything has been done to a message, and its turn has come; or that has ended in an error, or for nobody.

        None gets to the handler as it came.
        """
        if error is not None or self._dropped:
            turn.end()
            if error is not None:
                self._taker.refuse(_refusal(error))
            return
        self._pass_on(turn)
        if self._jobs.busy:
            return
        if self._end_is_due:
            self._taker.ended_by_client()
        else:
            self._taker.grant()

    def _pass_on(self, turn: Turn) -> None:
        try:
            self._taker.take(turn.message)
        finally:
            turn.end()


def _refusal(error: BaseException) -> MessageRefusal:
    """The end of an RPC whose message could not be taken."""
    if isinstance(error, MessageRefusal):
        return error
    if isinstance(error, ServeError):
        return MessageRefusal(error.code.grpc_status, error.message)
    if isinstance(error, Malformed):
        return MessageRefusal(error.status, error.text)
    log.error("a message could not be prepared", exc_info=error)
    return MessageRefusal(INTERNAL, "unexpected error while the request was handled; see the server's log")
