"""A replica of a group of models: `stubserve serve` as a child of Ray's actor, and what Ray and the fronts know of it.

The server is the one of every other installation, with ports of its own on this node. It ends with its actor, however
that ends (`child`).

To leave, a replica first says so: fronts then send it only requests of sequences that it has. After `drain_s` (2 s
where no model has sequences) it is not listed any more, and its server ends as on any SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import socket
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stubserve.fleet import child
from stubserve.fleet.asking import Reply, ask, ask_for
from stubserve.fleet.demand import Demand
from stubserve.fleet.directory import Change, Member, Told
from stubserve.fleet.group import Group
from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import to_json_dict

log = logging.getLogger("ray.serve")

_ANNOUNCE_S = 1.0
# Seconds in which fronts learn that a replica leaves
_LEARN_S = 2.0
_START_S = 600.0
_FAILED = re.compile(r"^stubserve_instance_failed\{(.*)\} 1$", re.MULTILINE)


class Replica:
    """Ray makes it in an actor, and calls the methods without an underscore."""

    async def __init__(self, group: Group) -> None:  # type: ignore[misc]  # Ray awaits
        """Returns once the models are loaded. Raises RuntimeError if the server ends instead."""
        from ray import serve

        self._group = group
        self._directory = serve.get_deployment_handle("directory", group.front)
        host = node_address()
        http_port, grpc_port, metrics_port = free_ports(host, 3)
        name = serve.get_replica_context().app_name
        models = tuple(group.models)
        self._member = Member(uuid.uuid4().hex, name, models, host, http_port, grpc_port, metrics_port)
        self._known = -1  # the last change that this replica knows of
        self._log: dict[str, Change] = {}
        self._making: asyncio.Task[None] | None = None
        self._demand = Demand()
        words = [
            "serve",
            f"--http-address={host}",
            f"--http-port={http_port}",
            f"--grpc-address={host}",
            f"--grpc-port={grpc_port}",
            f"--metrics-address={host}",
            f"--metrics-port={metrics_port}",
            "--exit-delay-secs=1",
            *group.words,
        ]
        self._process = child.start([sys.executable, "-m", "stubserve", *words], signal.SIGTERM)
        await self._until_ready()
        if group.calls:
            await self._load()
        sequences = await self._any_sequences()
        self._member = replace(self._member, sequences=sequences)
        self._announcing = asyncio.get_running_loop().create_task(self._announce_forever())

    async def check_health(self) -> None:
        """Raises RuntimeError if the server has ended, or an instance cannot recover; Ray then replaces the replica."""
        self._raise_if_ended()
        if failed := _FAILED.findall(await self._metrics()):
            raise RuntimeError(
                f"an instance has died too often and is not started again: {failed[0]}; its log says why"
            )

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray scales by: how many replicas the work that arrives here would fill."""
        metrics = await self._metrics()
        return {"demand": self._demand.of(metrics, time.monotonic())} if metrics else {}

    async def __del__(self) -> None:
        """Leaves: see the top of this module. Ray awaits it."""
        if not hasattr(self, "_announcing"):
            self._end()
            return
        self._announcing.cancel()
        until = time.monotonic() + (self._group.drain_s if self._member.sequences else _LEARN_S)
        self._member = replace(self._member, leaving=True)
        while time.monotonic() < until:
            await self._announce()
            await asyncio.sleep(_ANNOUNCE_S)
        with contextlib.suppress(Exception):  # the directory may be gone first
            await self._directory.gone.remote(self._member.id)
        await asyncio.sleep(_LEARN_S)
        await asyncio.to_thread(self._end)

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while (await self._ask("GET", "/v2/health/ready")).status != 200:
            self._raise_if_ended()
            if time.monotonic() > deadline:
                self._end()
                raise RuntimeError(f"the models are not ready after {_START_S:.0f} s")
            await asyncio.sleep(0.1)

    async def _load(self) -> None:
        """Loads the group's models, and first those of other groups as remote ones: ensembles need them at their load.

        Raises RuntimeError if one cannot be loaded.
        """
        loads = [(model, _remote(self._group, model)) for model in self._group.calls]
        for model, config in [*loads, *((model, None) for model in self._group.models)]:
            body = json.dumps({"parameters": {"config": json.dumps(config)}} if config else {}).encode()
            path = f"/v2/repository/models/{quote(model, safe='')}/load"
            reply = await ask_for(self._member, path, body, _START_S)
            if reply.status != 200:
                self._end()
                raise RuntimeError(f"model '{model}' is not loaded: {reply.body.decode(errors='replace')}")

    async def _any_sequences(self) -> bool:
        reply = await self._ask("POST", "/v2/repository/index", b'{"ready": true}')
        if reply.status != 200:
            return True  # it takes a token to know
        index = json.loads(reply.body)
        replies = [await self._ask("GET", f"/v2/models/{model['name']}/config") for model in index]
        return any("sequence_batching" in json.loads(reply.body) for reply in replies if reply.status == 200)

    async def _announce_forever(self) -> None:
        while True:
            # What cannot serve a model gets nothing new until Ray has replaced it.
            failed = _FAILED.search(await self._metrics())
            self._member = replace(self._member, leaving=failed is not None)
            knew = self._known
            await self._announce()
            if self._making is not None:
                await asyncio.wait({self._making}, timeout=_ANNOUNCE_S)
            # What it has just made is announced at once.
            if self._known == knew:
                await asyncio.sleep(_ANNOUNCE_S)

    async def _announce(self) -> None:
        """Says that this replica is there, and begins to make the changes that it has not made."""
        try:
            told = await self._directory.announce.remote(self._member, max(self._known, 0), self._known >= 0)
            if told.last < self._known:
                await self._directory.restore.remote(self._known, list(self._log.values()))
        except Exception as error:  # of Ray: the directory is being started anew
            log.warning("stubserve: no announcement: %s", error)
            return
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make(told))

    async def _make(self, told: Told) -> None:
        for change in told.changes:
            if self._member.id not in change.made_by:
                reply = await ask_for(self._member, change.path, change.body, _START_S, headers=change.headers)
                if reply.status != 200:
                    log.error("stubserve: %s of replica %d: %s", change.path, self._member.number, reply.body.decode())
            self._log[change.what] = change
        if told.changes:
            sequences = await self._any_sequences()
            self._member = replace(self._member, sequences=sequences)
        self._known = max(self._known, told.last)

    async def _metrics(self) -> str:
        """The text of the metrics port; "" without an answer."""
        reply = await ask(self._member.host, self._member.metrics_port, "GET", "/metrics", timeout_s=5.0)
        return reply.body.decode() if reply.status == 200 else ""

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        return await ask(self._member.host, self._member.http_port, method, path, body, timeout_s=5.0)

    def _raise_if_ended(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"`stubserve serve` ended with {self._process.returncode}; its log says why")

    def _end(self) -> None:
        """Ends the server as SIGTERM does, and returns when it has ended."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def _remote(group: Group, model: str) -> dict[str, Any]:
    """The configuration, as JSON has it, by which a replica asks a front for a model of another group.

    Inputs and outputs come from the repository where it is a folder that says them: so groups may call each other.
    Else the front is asked for them, until the other group is there.
    """
    given = {"url": group.calls_at, "patience_s": str(int(_START_S))}
    config: dict[str, Any] = {"backend": "remote"}
    config["parameters"] = {name: {"string_value": value} for name, value in given.items()}
    file = Path(group.repository, model, "config.pbtxt")
    if file.is_file():
        said = to_json_dict(parse_text(file.read_text(), str(file)))
        if said.get("input") and said.get("output"):
            config.update({name: said[name] for name in ("max_batch_size", "input", "output") if name in said})
    return config


def node_address() -> str:
    """The address by which Ray knows the node of this actor."""
    import ray

    me = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == me)


def free_ports(host: str, count: int) -> list[int]:
    """Ports of `host`, as many as asked for. They are free until another process takes them."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
