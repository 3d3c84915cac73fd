"""A front: the address of the whole fleet on one node.

HAProxy (`balancer`) sends requests to replicas, `fan_out` asks all of them. This actor only keeps both in step with
the directory; requests do not pass it. When the directory does not answer, requests go on to the replicas last known.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from stubserve.fleet import directory as known
from stubserve.fleet.balancer import Balancer
from stubserve.fleet.configuration import Addresses
from stubserve.fleet.directory import Change, Fleet
from stubserve.fleet.fan_out import SAFE, FanOut
from stubserve.fleet.replica import free_ports, node_address
from stubserve.fleet.replica_client import OF_CONNECTION, ask

log = logging.getLogger("ray.serve")

_AGAIN_S = 0.5


class Front:
    """Ray makes it in an actor, and calls the methods without an underscore."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, directory: Any, address: str, http_port: int, grpc_port: int, metrics_port: int
    ) -> None:
        """Returns once it follows the directory."""
        self._directory = directory
        self._shown = Fleet(-1, [], [], {})
        host = node_address()
        own_http_port, own_grpc_port, peer_port = free_ports(host, 3)
        self._known = known.Front(f"f{uuid.uuid4().hex[:12]}", host, peer_port)
        fan_out = FanOut(lambda: self._shown, self._record)
        config = uvicorn.Config(fan_out.app(), "127.0.0.1", own_http_port, log_level="warning", lifespan="off")
        self._http = _Uvicorn(config)
        self._grpc = fan_out.grpc_server()
        self._grpc.add_insecure_port(f"127.0.0.1:{own_grpc_port}")
        await self._grpc.start()
        self._folder = Path(tempfile.mkdtemp(prefix="stubserve-front-"))
        self._address = "127.0.0.1" if address in ("0.0.0.0", "::") else address
        self._port = http_port
        addresses = Addresses(address, http_port, grpc_port, metrics_port, own_http_port, own_grpc_port)
        self._balancer = Balancer(self._folder, addresses)
        self._tasks = [asyncio.create_task(self._http.serve()), asyncio.create_task(self._follow())]

    async def check_health(self) -> None:
        """Raises RuntimeError if HAProxy has ended or refuses its configuration; Ray then starts another front."""
        for task in self._tasks:
            if task.done():
                task.result()
        if self._shown.replicas and not self._balancer.lives:
            raise RuntimeError("the front does not answer any more; HAProxy's log, above, says why")

    async def __call__(self, request: Request) -> Response:
        """A request that came through Ray's own proxy."""
        headers = {name: value for name, value in request.headers.items() if name not in OF_CONNECTION}
        path = quote(request.scope["path"], safe=SAFE) + (f"?{request.url.query}" if request.url.query else "")
        reply = await ask(self._address, self._port, request.method, path, await request.body(), headers, 3600.0)
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in OF_CONNECTION}
        return Response(reply.body, reply.status, kept)

    async def __del__(self) -> None:
        """Ray awaits it."""
        if hasattr(self, "_tasks"):
            for task in self._tasks:
                task.cancel()
            with contextlib.suppress(Exception):  # the directory may be gone first
                await self._directory.gone.remote(self._known.id)
            await self._grpc.stop(None)
            await asyncio.to_thread(self._balancer.end)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _follow(self) -> None:
        version = -1
        while True:
            try:
                fleet = await self._directory.fleet.remote(self._known, version)
            except Exception as error:  # of Ray: the directory is being started anew
                log.warning("stubserve: no list of replicas: %s", error)
                version = -1
                await asyncio.sleep(_AGAIN_S)
                continue
            version = fleet.version
            # A new directory knows no replicas for a moment.
            if fleet.replicas and dataclasses.replace(fleet, version=self._shown.version) != self._shown:
                self._shown = fleet
                await asyncio.to_thread(self._balancer.show, fleet, self._known.id)

    async def _record(self, change: Change) -> None:
        await self._directory.changed.remote(change)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to Ray."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield
