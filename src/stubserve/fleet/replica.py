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
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stubserve.api.access import AUTHORIZATION, OWNER
from stubserve.fleet import child
from stubserve.fleet.demand import Demand
from stubserve.fleet.directory import AnnounceReply, Change, ReplicaInfo
from stubserve.fleet.group import Group
from stubserve.fleet.replica_client import Reply, ask, ask_replica
from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import to_json_dict

log = logging.getLogger("ray.serve")

_ANNOUNCE_S = 1.0
# Seconds in which fronts learn that a replica leaves
_LEARN_S = 2.0
_START_S = 600.0
# Until a change that has failed is tried again
_AGAIN_S = 30.0
# For a server to end, with --exit-timeout-secs
_END_S = 35.0
_IDLE = "max_sequence_idle_microseconds"
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
        self._info = ReplicaInfo(uuid.uuid4().hex, name, models, host, http_port, grpc_port, metrics_port)
        self._known = -1  # the last change that this replica knows of
        self._log: dict[str, Change] = {}
        self._again: dict[int, float] = {}  # changes that have failed, and when they are tried again
        # All rights at the server: clients' tokens are not kept, and may be withdrawn.
        self._rights = {AUTHORIZATION: f"Bearer {secrets.token_hex(32)}"}
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
        command = [sys.executable, "-m", "stubserve", *words]
        self._process = child.start(command, signal.SIGTERM, **{OWNER: self._rights[AUTHORIZATION]})
        await self._until_ready()
        if group.calls:
            await self._load()
        self._info = replace(self._info, sequences=await self._longest_idle())
        self._announcing = asyncio.get_running_loop().create_task(self._announce_forever())

    async def check_health(self) -> None:
        """Raises RuntimeError if the server has ended or is silent, or an instance cannot recover.

        Ray then replaces the replica.
        """
        self._raise_if_ended()
        alive = await self._ask("GET", "/v2/health/live")
        if alive.status != 200:
            raise RuntimeError(f"`stubserve serve` runs, and does not say that it lives: {alive.text}")
        if failed := _FAILED.findall(await self._metrics()):
            raise RuntimeError(
                f"an instance has died too often and is not started again: {failed[0]}; its log says why"
            )

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray scales by: how many replicas the work that arrives here would fill."""
        metrics = await self._metrics()
        return {"demand": self._demand.update(metrics, time.monotonic())} if metrics else {}

    async def __del__(self) -> None:
        """Leaves: see the top of this module. Ray awaits it."""
        if not hasattr(self, "_announcing"):
            self._end()
            return
        self._announcing.cancel()
        until = time.monotonic() + (self._group.drain_s if self._info.sequences else _LEARN_S)
        self._info = replace(self._info, leaving=True)
        while time.monotonic() < until:
            await self._announce()
            await asyncio.sleep(_ANNOUNCE_S)
        with contextlib.suppress(Exception):  # the directory may be gone first
            await self._directory.gone.remote(self._info.id)
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
            reply = await ask_replica(self._info, path, body, _START_S, headers=self._rights)
            if reply.status != 200:
                self._end()
                raise RuntimeError(f"model '{model}' is not loaded: {reply.text}")

    async def _longest_idle(self) -> int:
        """For how many seconds a sequence of these models may be idle; 0 without sequences."""
        reply = await self._ask("POST", "/v2/repository/index", b'{"ready": true}')
        index = json.loads(reply.body) if reply.status == 200 else []
        replies = [await self._ask("GET", f"/v2/models/{quote(model['name'], safe='')}/config") for model in index]
        configs = [json.loads(reply.body) for reply in replies if reply.status == 200]
        batchers = [config["sequence_batching"] for config in configs if "sequence_batching" in config]
        return max((1 + int(one.get(_IDLE, 0)) // 1_000_000 for one in batchers), default=0)

    async def _announce_forever(self) -> None:
        while True:
            # What cannot serve a model, or is silent, gets nothing new until Ray has replaced it.
            alive = (await self._ask("GET", "/v2/health/live")).status == 200
            failed = _FAILED.search(await self._metrics())
            self._info = replace(self._info, leaving=failed is not None or not alive)
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
            failed = frozenset(change.number for change in self._log.values() if change.number in self._again)
            told = await self._directory.announce.remote(self._info, max(self._known, 0), self._known >= 0, failed)
            if told.last < self._known:
                await self._directory.restore.remote(self._known, list(self._log.values()))
        except Exception as error:  # of Ray: the directory is being started anew
            log.warning("stubserve: no announcement: %s", error)
            return
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make(told))

    async def _make(self, told: AnnounceReply) -> None:
        tried = False
        for change in told.changes:
            self._log[change.what] = change
            if self._info.id in change.made_by or self._again.get(change.number, 0.0) > time.monotonic():
                continue
            tried = True
            reply = await ask_replica(self._info, change.path, change.body, _START_S, headers=self._rights)
            if reply.status == 200:
                self._again.pop(change.number, None)
                continue
            if change.number not in self._again:
                log.error("stubserve: %s of replica %d: %s", change.path, self._info.number, reply.text)
            self._again[change.number] = time.monotonic() + _AGAIN_S
        if tried or told.last > self._known:
            self._info = replace(self._info, sequences=await self._longest_idle())
        self._known = max(self._known, told.last)

    async def _metrics(self) -> str:
        """The text of the metrics port; "" without an answer."""
        host, port = self._info.host, self._info.metrics_port
        reply = await ask(host, port, "GET", "/metrics", headers=self._rights, timeout_s=5.0)
        return reply.text if reply.status == 200 else ""

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        return await ask(self._info.host, self._info.http_port, method, path, body, self._rights, timeout_s=5.0)

    def _raise_if_ended(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"`stubserve serve` ended with {self._process.returncode}; its log says why")

    def _end(self) -> None:
        """Ends the server as SIGTERM does, or kills it if that takes too long; returns when it has ended."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
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
