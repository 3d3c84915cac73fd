"""The main loop of an instance in a stub: has its backend initialize and execute batches, as the server asks for it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence

from stubserve_stub.backends.base import Backend, InstanceSetup
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.channel import EXECUTING, FINALIZING, IDLE
from stubserve_stub.runtime.client_regions import MappedRegions
from stubserve_stub.runtime.failure import describe, for_log
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.region_batch import RegionBatch
from stubserve_stub.wire import codes, messages
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.messages import Entry, RegionOutput, WireRequest


class MainLoop:
    """What an instance does from its `order` on, the message "initialize". `regions` gives clients' shared memory."""

    def __init__(
        self, host: Host, order: Dict[str, Any], backend: Backend, regions: Callable[[], MappedRegions]
    ) -> None:
        self._host = host
        self._order = order
        self._backend = backend
        self._regions = regions
        self._channel = host.channel
        self._control = host.control
        self._process = os.getpid()
        # For cancellations, from the control thread: the batch that runs, and cancellations of later ones
        self._cancelling = threading.Lock()
        self._current: Optional[Batch] = None
        self._cancelled: Dict[int, Sequence[int]] = {}
        self._newest = 0
        self._stopped = False

    def run(self) -> None:
        """Returns when the parent has said stop, or when the model cannot be initialized.

        Raises errors of the stub itself, and in a process that the model has forked whatever leaves `execute`.
        """
        if not self._initialize():
            return
        self._serve()
        self._channel.set_health(FINALIZING)
        try:
            self._backend.instance_finalize()
        except BaseException as error:
            self._host.log(codes.LOG_INFO, __file__, 0, for_log(error))

    def _initialize(self) -> bool:
        backend, order, devices = self._backend, self._order, self._channel.devices
        name, arguments = order["instance"], order["arguments"]
        try:
            if devices is not None and arguments["model_instance_kind"] == "GPU":
                devices.home = int(arguments["model_instance_device_id"])
            backend.instance_initialize(InstanceSetup(name, arguments, order["outputs"], order["decoupled"]))
            if devices is not None:
                devices.check_load(name)
        except BaseException as error:  # a model may raise SystemExit, and the parent must hear of that, too
            self._control.send("failed", stage="initialize", error=describe(error), log=for_log(error))
            return False
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
