"""All workers of a server: started, given connections, started anew when they die, and ended."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from typing import Any

from stubserve.ingress.passed_requests import PassedRequests
from stubserve.ingress.settings import boot_of
from stubserve.ingress.worker import Worker
from stubserve.instances.restart import RestartPolicy
from stubserve.server import Server

log = logging.getLogger("stubserve.server")

# A worker that dies at once is not given up: the owner serves meanwhile.
_NO_LIMIT = 1 << 30
_START_S = 30.0
_ACKNOWLEDGE_S = 2.0
_END_S = 5.0


class Workers:
    """The `--http-workers` of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._count = server.settings.http.workers
        self._passed = PassedRequests(server)
        self._workers: dict[int, Worker] = {}
        self._policies = [RestartPolicy(_NO_LIMIT) for _ in range(self._count)]
        self._started_at: dict[int, float] = {}
        self._state = 0
        self._ending = False

    def start(self) -> None:
        """Starts them all; until they are ready connections are the owner's own. Raises OSError."""
        self._server.registry.watchers.add(self._on_registry)
        self._server.log_settings.watchers.add(self._tell_log_settings)
        for number in range(self._count):
            self._start(number)

    async def ready(self) -> None:
        """Waits until they take connections, for a while at most."""
        await _all((worker.ready for worker in self._workers.values()), _START_S)

    def give(self, client: socket.socket) -> bool:
        """Hands a connection to the worker that has the fewest; False where the owner has to serve it."""
        ready = [worker for worker in self._workers.values() if worker.ready.is_set() and not worker.gone.is_set()]
        for worker in sorted(ready, key=_connections):
            if worker.give(client):
                client.close()
                return True
        return False

    async def begin_drain(self) -> None:
        """The requests that are under way now are those that the end waits for."""
        self._ending = True
        for worker in self._workers.values():
            worker.send("drain")
        await _all((worker.draining for worker in self._workers.values()), _ACKNOWLEDGE_S)

    async def drain(self) -> None:
        """Waits until these are answered."""
        for worker in list(self._workers.values()):
            await worker.drained.wait()

    async def stop(self) -> None:
        """Ends them."""
        self._ending = True
        self._server.log_settings.watchers.discard(self._tell_log_settings)
        workers = list(self._workers.values())
        for worker in workers:
            worker.send("end")
        await _all((worker.gone for worker in workers), _END_S)
        for worker in workers:
            worker.kill()
        await _all((worker.gone for worker in workers), _END_S)

    def _start(self, number: int) -> None:
        name = f"HTTP worker {number}"
        self._started_at[number] = time.monotonic()
        server = self._server
        boot = boot_of(server.settings, server.log_settings.to_dict(), server.grpc_port)
        on_death = functools.partial(self._on_death, number)
        worker = Worker(name, server, boot, self._passed.receive, self._make_room, on_death)
        worker.set_state(self._state)
        self._workers[number] = worker

    async def _make_room(self, needy: Worker) -> bool:
        """Has some worker give up a client that is slow, for another needs the memory; whether one did."""
        for worker in list(self._workers.values()):
            if worker is not needy and await worker.yields():
                return True
        return False

    def _on_death(self, number: int, worker: Worker, cause: str) -> None:
        del self._workers[number]
        if self._ending:
            return
        delay = self._policies[number].next_delay(self._started_at[number], time.monotonic())
        log.error("%s (pid %d) has died: %s; it is started again in %.1f s", worker.name, worker.pid, cause, delay)
        asyncio.get_running_loop().call_later(delay or 0, self._start_again, number)

    def _start_again(self, number: int) -> None:
        if self._ending:
            return
        try:
            self._start(number)
        except OSError as error:
            log.error("HTTP worker %d cannot be started: %s", number, error)
            asyncio.get_running_loop().call_later(_END_S, self._start_again, number)

    def _on_registry(self) -> None:
        self._state += 1
        for worker in self._workers.values():
            worker.set_state(self._state)

    def _tell_log_settings(self) -> None:
        values: dict[str, Any] = self._server.log_settings.to_dict()
        for worker in self._workers.values():
            worker.send("log", values=values)


def _connections(worker: Worker) -> int:
    return worker.connections


async def _all(events: Any, timeout_s: float) -> None:
    """Waits for all events, for a time at most."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    if waiting:
        _, late = await asyncio.wait(waiting, timeout=timeout_s)
        for one in late:
            one.cancel()
