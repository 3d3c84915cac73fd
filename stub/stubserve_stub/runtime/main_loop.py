"""The main loop of a stub: has the backend load its model and execute batches, as the server asks for it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from typing import Any, Dict, Iterator, Optional, Sequence

import numpy as np

from stubserve_stub.backends.base import Backend, InstanceSetup, ModelFiles
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.channel import EXECUTING, FINALIZING, IDLE
from stubserve_stub.runtime.client_regions import MappedRegions
from stubserve_stub.runtime.failure import describe, for_log
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.region_batch import RegionBatch
from stubserve_stub.wire import codes, messages
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.messages import Entry, RegionOutput, WireRequest


class _NotLoaded(Exception):
    """A stage of the load has failed, and the parent knows."""


class MainLoop:
    """What a stub does from its first order to its last. `boot` is the message that has started it."""

    def __init__(self, host: Host, boot: Dict[str, Any], backend: Backend) -> None:
        self._host = host
        self._boot = boot
        self._backend = backend
        self._channel = host.channel
        self._control = host.control
        self._process = os.getpid()
        # For cancellations, from the control thread: the batch that runs, and cancellations of later ones
        self._cancelling = threading.Lock()
        self._current: Optional[Batch] = None
        self._cancelled: Dict[int, Sequence[int]] = {}
        self._newest = 0
        self._stopped = False
        # Made for the first batch that refers to a region
        self._client_regions: Optional[MappedRegions] = None

    def run(self) -> None:
        """Returns when the parent has said stop, or when there is nothing to serve.

        Raises errors of the stub itself, and in a process that the model has forked whatever leaves `execute`.
        """
        try:
            serves = self._load()
        except _NotLoaded:
            return
        if serves:
            self._serve()
            self._channel.set_health(FINALIZING)
            try:
                self._backend.instance_finalize()
            except BaseException as error:
                self._host.log(codes.LOG_INFO, __file__, 0, for_log(error))

    # Loading

    @contextlib.contextmanager
    def _reporting(self, stage: str) -> Iterator[None]:
        """Turns whatever a stage raises into a "failed" message. Raises _NotLoaded then."""
        try:
            yield
        except BaseException as error:  # a model may raise SystemExit, and the parent must hear of that, too
            self._control.send("failed", stage=stage, error=describe(error), log=for_log(error))
            raise _NotLoaded from None

    def _load(self) -> bool:
        """Loads the model as the parent asks; False if the process had only to complete a configuration."""
        boot, backend = self._boot, self._backend
        with self._reporting("import"):
            start = time.monotonic_ns()
            backend.initialize(self._host)
            backend.model_initialize(ModelFiles(boot["version_dir"], boot["model_file"], boot["module"], boot["paths"]))
        self._control.send(
            "imported",
            completes_config=backend.completes_config,
            serves_after_completion=backend.serves_after_completion,
            methods=backend.methods,
            import_ns=time.monotonic_ns() - start,
            executable=sys.executable,
            implementation=platform.python_implementation(),
            python=platform.python_version(),
            numpy=np.__version__,
            pid=os.getpid(),
        )
        while True:
            order = self._control.inbox.get()
            if order["kind"] == "complete":
                with self._reporting("auto_complete_config"):
                    completed = backend.complete_config(order["model"], order["config"])
                self._control.send("completed", config=completed)
                if not backend.serves_after_completion:
                    return False
            if order["kind"] == "initialize":
                break
        self._host.instance = order["instance"]
        with self._reporting("initialize"):
            name, arguments, devices = order["instance"], order["arguments"], self._channel.devices
            if devices is not None and arguments["model_instance_kind"] == "GPU":
                devices.home = int(arguments["model_instance_device_id"])
            backend.instance_initialize(InstanceSetup(name, arguments, order["outputs"], order["decoupled"]))
            if devices is not None:
                devices.check_load(name)
        self._control.handle("cancel", self._on_cancel)
        self._control.handle("is_ready", self._on_is_ready)
        self._channel.set_health(IDLE)
        self._control.send("ready", checks_readiness=backend.checks_readiness, streams=backend.streams)
        return True

    # Serving

    def _serve(self) -> None:
        handlers = messages.handlers_of_stub(self)
        while not self._stopped:
            messages.deliver(handlers, self._channel.receive())

    def _regions(self) -> MappedRegions:
        if self._client_regions is None:
            self._client_regions = MappedRegions(self._boot["regions"])
            self._control.handle("region_gone", self._on_region_gone)
        return self._client_regions

    def on_stop(self) -> None:
        self._stopped = True

    def on_execute(
        self,
        number: int,
        frees: Sequence[int],
        requests: Sequence[Optional[WireRequest]],
        sequences: Sequence[int] = (),
        region_outputs: Optional[Sequence[RegionOutput]] = None,
    ) -> None:
        channel = self._channel
        if frees:
            channel.free(frees)
        regions = None
        if region_outputs is not None:
            regions = RegionBatch(self._regions(), number, requests, region_outputs, channel.region_inputs)
            requests = regions.take_requests()
        batch = Batch(channel, number, requests, sequences, regions)
        with self._cancelling:
            batch.cancelled = self._cancelled.pop(number, ())
            self._current = batch
            self._newest = number
        start = channel.set_health(EXECUTING, number)
        error = None
        entries: Sequence[Entry] = ()
        try:
            entries = self._backend.execute(batch)
        except BaseException as raised:  # SystemExit and KeyboardInterrupt of a model are errors of the model, too
            if os.getpid() != self._process:
                raise  # in a process that the model has forked, see run()
            error = self._host.failure(raised)
        if regions is not None:
            requests = batch.requests = ()
            entries = regions.finish(entries, batch)
        overflow = ""
        with channel.sending:
            with self._cancelling:
                self._current = None
            held, entries = batch.prepare_result(entries)
            end = batch.computed_ns or time.monotonic_ns()
            try:
                channel.send(messages.pack_result(number, start, end, entries, held, error))
            except ArenaFull as full:
                overflow = str(full)
        if overflow:
            batch.take_back(entries)
            self._backend.revoke(number)
            if regions is not None:
                regions.revoke()
            channel.send(messages.pack_result(number, start, end, (), held, overflow))
        channel.set_health(IDLE)

    # On the control thread

    def _on_region_gone(self, message: Dict[str, Any]) -> None:
        assert self._client_regions is not None
        self._client_regions.forget(message["number"])

    def _on_cancel(self, message: Dict[str, Any]) -> None:
        number, indices = message["batch"], message["indices"]
        with self._cancelling:
            if self._current is not None and self._current.number == number:
                self._current.cancelled = (*self._current.cancelled, *indices)
            elif number > self._newest:
                self._cancelled[number] = (*self._cancelled.get(number, ()), *indices)
        self._backend.cancel(number, indices)

    def _on_is_ready(self, message: Dict[str, Any]) -> None:
        # A thread of its own: a slow answer must not hold up cancellations. The parent sends one query at a time.
        threading.Thread(target=self._answer_is_ready, daemon=True).start()

    def _answer_is_ready(self) -> None:
        try:
            ready, reason = self._backend.is_ready(), ""
            if not ready:
                reason = f"Model '{self._host.instance}' is not ready (user-defined check failed)."
        except BaseException as error:
            ready, reason = False, describe(error)
        self._control.send("readiness", ready=ready, reason=reason)
