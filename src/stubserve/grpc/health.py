"""grpc.health.v1: Check and Watch. Like upstream's, it speaks of the server as a whole, whichever service is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stubserve.api.management import ServerFacts, refuse_while_exiting
from stubserve.grpc.transport import UNAVAILABLE, Rpc
from stubserve.grpc.wellknown import health
from stubserve.memory.blocks import Block

REQUEST = health.HealthCheckRequest
_RESPONSE = health.HealthCheckResponse
_SERVING, _NOT_SERVING = 1, 2

# How often a watched server looks whether it is still ready: models may answer that themselves, so nothing tells.
WATCH_INTERVAL_S = 1.0


async def check(server: ServerFacts) -> Any:
    """SERVING if the server is ready. Raises ServeError (UNAVAILABLE) while it exits."""
    refuse_while_exiting(server)
    return _RESPONSE(status=_SERVING if await server.ready() else _NOT_SERVING)


class HealthWatch:
    """The handler of a Watch: the status now, and again whenever it changes, until the client has enough."""

    def __init__(self, server: ServerFacts, call: Rpc, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep):
        self._server = server
        self._call = call
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def on_half_close(self) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """The server stops."""
        self.on_cancel()
        self._call.send([_RESPONSE(status=_NOT_SERVING).SerializeToString()], [])
        self._call.finish(UNAVAILABLE, "Server exiting")

    async def _watch(self) -> None:
        told = 0
        while True:
            status = _SERVING if await self._server.ready() else _NOT_SERVING
            if status != told:
                told = status
                self._call.send([_RESPONSE(status=status).SerializeToString()], [])
            await self._sleep(WATCH_INTERVAL_S)
