"""The instances in a stub's process: one model, and a seat for each instance of it.

The process loads the model. Then each "initialize" of the server brings an instance, with a segment of the arena and
doorbells of its own, and so with rings, a health word and memory of its own: a seat. A seat is a thread with a main
loop; the first seat has the main thread. When an instance is stopped its seat is left: its segment, which another stub
may get, is not written any more. The process ends with the last seat.

Each seat maps the arena for itself. So what one may write to is protected from the others, as from other processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, NoReturn, Optional, Set

import numpy as np

from stubserve_stub.backends.base import Backend, ModelFiles
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.client_regions import MappedRegions
from stubserve_stub.runtime.control import Control, Line
from stubserve_stub.runtime.failure import Refusal, describe, for_log
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.main_loop import MainLoop
from stubserve_stub.wire.budget import Grant
from stubserve_stub.wire.stub_arena import StubArena

if TYPE_CHECKING:
    # Only servers with GPUs need it.
    from stubserve_stub.runtime.devices import Devices


class _NotLoaded(Exception):
    """A stage of the load has failed, and the parent knows."""


class Seats:
    """What a stub does from its first order to its last. `boot` is the message that has started it.

    `arena` is the arena's descriptor. `break_off` ends the process after an error of its own.
    """

    def __init__(
        self,
        arena: int,
        host: Host,
        control: Control,
        boot: Dict[str, Any],
        backend: Backend,
        break_off: Callable[[BaseException], NoReturn],
        devices: Optional[Devices] = None,
    ) -> None:
        self._arena = arena
        self._host = host
        self._control = control
        self._boot = boot
        self._backend = backend
        self._break_off = break_off
        self._devices = devices
        self._taken: Set[int] = set()
        self._left = threading.Condition()
        # Made for the first batch that refers to a region
        self._regions: Optional[MappedRegions] = None
        self._mapping = threading.Lock()

    def run(self) -> None:
        """Returns when the last seat is left, or when there is nothing to serve. Raises as `MainLoop.run`."""
        try:
            order = self._load()
        except _NotLoaded:
            return
        if order is None:
            return
        self._taken.add(order["number"])
        self._control.handle("initialize", self._begin)
        self._sit(order)
        with self._left:
            while self._taken:
                self._left.wait()

    # Loading

    @contextlib.contextmanager
    def _reporting(self, stage: str) -> Iterator[None]:
        """Turns whatever a stage raises into a "failed" message. Raises _NotLoaded then."""
        try:
            yield
        except BaseException as error:  # a model may raise SystemExit, and the parent must hear of that, too
            self._control.send("failed", stage=stage, error=describe(error), log=for_log(error))
            raise _NotLoaded from None

    def _load(self) -> Optional[Dict[str, Any]]:
        """Loads the model: the order of the first seat, None if the process had only to complete a configuration."""
        boot, backend = self._boot, self._backend
        self._control.send("loading")
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
                    return None
            if order["kind"] == "initialize":
                return order

    # Seats

    def _begin(self, order: Dict[str, Any]) -> None:
        """Takes a further seat. On the control thread."""
        self._taken.add(order["number"])
        try:
            threading.Thread(target=self._sit_alone, args=(order,), name=order["instance"], daemon=True).start()
        except RuntimeError as error:  # there are as many threads as there may be
            _close(order["descriptors"])
            self._leave(Line(self._control, order["number"]), order["number"], error)

    def _sit_alone(self, order: Dict[str, Any]) -> None:
        try:
            self._sit(order)
        except BaseException as error:
            self._break_off(error)

    def _sit(self, order: Dict[str, Any]) -> None:
        number = order["number"]
        line = Line(self._control, number)
        try:
            channel = self._channel(order, line)
        except OSError as error:
            self._leave(line, number, error)
            return
        host = self._host.at(order["instance"], channel, line)
        MainLoop(host, order, self._backend.for_instance(host), self._client_regions).run()
        # Before it is left: a handler would give back memory in the segment.
        line.close()
        # Without the host, which has the channel: the memory and the doorbells go when nobody has them any more.
        channel.leave(functools.partial(_refuse, order["instance"]))
        self._leave(line, number)

    def _leave(self, line: Line, number: int, failure: Optional[Exception] = None) -> None:
        if failure is not None:
            line.send("failed", stage="initialize", error=describe(failure), log=for_log(failure))
        line.send("left")
        with self._left:
            self._taken.discard(number)
            self._left.notify()

    def _channel(self, order: Dict[str, Any], line: Line) -> Channel:
        """Raises OSError."""
        doorbells = order["descriptors"]
        try:
            if len(doorbells) != 3:
                raise OSError("this process has as many open files as it may")
            channel = Channel(StubArena(self._arena, self._boot["arena"], order["segment"], Grant()), *doorbells)
        except OSError:
            _close(doorbells)
            raise
        # Not before: what the model has kept of an instance that is gone may still poke it.
        weakref.finalize(channel, _close, doorbells).atexit = False
        channel.memory.connect(line)
        if self._devices is not None:
            channel.use_devices(self._devices)
        return channel

    def _client_regions(self) -> MappedRegions:
        with self._mapping:
            if self._regions is None:
                self._regions = regions = MappedRegions(self._boot["regions"])
                self._control.handle("region_gone", lambda message: regions.forget(message["number"]))
            return self._regions


def _refuse(instance: str, *_: Any, **__: Any) -> NoReturn:
    raise Refusal(f"model instance '{instance}' has been finalized")


def _close(descriptors: Any) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
