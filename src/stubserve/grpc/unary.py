"""The handler of a unary RPC that is not hot: its message parsed, a coroutine awaited, the answer serialized."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError

from stubserve.errors import ServeError
from stubserve.grpc.transport import INTERNAL, Rpc
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.grpc")


class Unary:
    """Answers with `respond(request)`, which raises ServeError or returns a message."""

    def __init__(self, call: Rpc, request_class: Any, respond: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call
        self._request_class = request_class
        self._respond = respond
        self._task: asyncio.Task[None] | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            request = self._request_class.FromString(bytes(data))
        except DecodeError:
            self._call.finish(INTERNAL, "Unable to parse request")
            return
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    def on_half_close(self) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, request: Any) -> None:
        try:
            answer = await self._respond(request)
        except ServeError as error:
            self._call.finish(error.code.grpc_status, error.message)
        except Exception:
            log.exception("%s failed inside the server", type(request).__name__)
            self._call.finish(INTERNAL, "unexpected error while the request was handled; see the server's log")
        else:
            self._call.reply([answer.SerializeToString()], [])
