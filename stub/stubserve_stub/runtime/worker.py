"""The stub's life: shake hands, take the backend through its steps, serve batches until told to stop, finalize.

What runs a batch is behind `backends.base.Backend`; this module alone knows both the process and the interface.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import platform
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, Iterator, NoReturn, Optional, Sequence

import numpy as np

from stubserve_stub.backends.base import Backend, InstanceFacts, ModelFiles
from stubserve_stub.backends.find import find
from stubserve_stub.runtime import session_threads, signals
from stubserve_stub.runtime.batch_memory import BatchMemory
from stubserve_stub.runtime.channel import EXECUTING, FINALIZING, IDLE, Channel
from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.failure import describe
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.wire_batch import WireBatch
from stubserve_stub.wire import codes, messages
from stubserve_stub.wire.arena import Arena, ArenaFull
from stubserve_stub.wire.messages import Entry, WireRequest

# What browsers give the processes of their pages: a third of all memory on top of what they use
_OOM_SCORE = 300


class Worker:
    """One stub process. The arguments are inherited descriptors: arena, control socket, the three doorbells."""

    def __init__(
        self, arena: int, control: int, request_doorbell: int, response_doorbell: int, answer_doorbell: int
    ) -> None:
        self._name_process()
        for descriptor in (arena, control, request_doorbell, response_doorbell, answer_doorbell):
            # Not for other programs: neither those that the model starts, nor one that it becomes.
            os.set_inheritable(descriptor, False)
        self._process = os.getpid()
        self._control = Control(control)
        boot = self._control.inbox.get()
        self._boot = boot
        memory = Arena.attach(arena)
        self._channel = Channel(memory, boot["segment"], request_doorbell, response_doorbell, answer_doorbell)
        self._host = Host(boot["instance"], memory, self._channel, self._control)
        self._backend: Backend = find(boot["backend"])
        # For cancellation, which arrives on the control thread: the batch that runs, and what is said of later ones
        self._cancelling = threading.Lock()
        self._current: Optional[WireBatch] = None
        self._cancelled: Dict[int, Sequence[int]] = {}
        self._newest = 0
        self._stopped = False

    @staticmethod
    def _name_process() -> None:
        signals.leave_to_the_server()
        faulthandler.enable()
        # All stubs share the server's output: a line is written in one piece, under PYTHONUNBUFFERED too.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):
                stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
        with contextlib.suppress(OSError, AttributeError):
            import ctypes

            prctl = ctypes.CDLL(None).prctl
            prctl(15, b"triton_python_backend_stub", 0, 0, 0)  # PR_SET_NAME, cut to 15 letters by the kernel
            prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: for a model that holds the GIL when the parent dies
        # When memory runs out one stub goes rather than the server, in whose memory all tensors are counted.
        with contextlib.suppress(OSError):
            with open("/proc/self/oom_score_adj") as file:
                score = int(file.read())
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(min(score + _OOM_SCORE, 1000)))

    def run(self) -> None:
        """Serves until the parent says stop; ends the process."""
        try:
            if self._load():
                self._serve()
                self._finalize()
        except BaseException as error:
            _break_off(error)
        _leave()

    # Loading

    @contextlib.contextmanager
    def _reporting(self, stage: str) -> Iterator[None]:
        """Turns whatever a stage raises into a "failed" message and the end of the process."""
        try:
            yield
        except BaseException as error:  # a model may raise SystemExit, and the parent must hear of that too
            self._control.send("failed", stage=stage, error=describe(error))
            _leave()

    def _load(self) -> bool:
        """Loads the model as the parent asks; False if the process was only to complete a configuration."""
        boot, backend = self._boot, self._backend
        with self._reporting("import"):
            if boot["threads"]:
                session_threads.limit(boot["threads"])
            start = time.monotonic_ns()
            backend.initialize(self._host)
            backend.model_initialize(ModelFiles(boot["version_dir"], boot["model_file"], boot["module"], boot["paths"]))
        self._control.send(
            "imported",
            completes_config=backend.completes_config,
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
                return False
            if order["kind"] == "initialize":
                break
        self._host.instance = order["instance"]
        with self._reporting("initialize"):
            backend.instance_initialize(
                InstanceFacts(order["instance"], order["arguments"], order["outputs"], order["decoupled"])
            )
        self._control.handle("cancel", self._on_cancel)
        self._control.handle("is_ready", self._on_is_ready)
        self._channel.set_health(IDLE)
        self._control.send("ready", checks_readiness=backend.checks_readiness)
        return True

    # Serving

    def _serve(self) -> None:
        handlers = messages.handlers_of_stub(self)
        while not self._stopped:
            messages.deliver(handlers, self._channel.receive())

    def on_stop(self) -> None:
        self._stopped = True

    def on_execute(self, number: int, frees: Sequence[int], requests: Sequence[Optional[WireRequest]]) -> None:
        channel = self._channel
        channel.free(frees)
        batch = WireBatch(number, requests, BatchMemory(channel))
        with self._cancelling:
            batch.cancelled = self._cancelled.pop(number, ())
            self._current = batch
            self._newest = number
        channel.set_health(EXECUTING, number)
        start = time.monotonic_ns()
        error = None
        entries: Sequence[Entry] = ()
        try:
            entries = self._backend.execute(batch)
        except BaseException as raised:  # SystemExit and KeyboardInterrupt of a model are its error too
            if os.getpid() != self._process:
                raise  # of a process that the model has forked, see run()
            error = self._host.failure(describe(raised))
        overflow = ""
        with channel.sending:
            with self._cancelling:
                self._current = None
            held, entries = batch.memory.settle(entries)
            end = batch.computed_ns or time.monotonic_ns()
            try:
                channel.send(messages.pack_result(number, start, end, entries, held, error))
            except ArenaFull as full:
                overflow = str(full)
        if overflow:
            batch.memory.take_back(entries)
            self._backend.revoke(number)
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
        # A thread of its own: a slow answer must not hold up cancellations. The parent asks one question at a time.
        threading.Thread(target=self._answer_is_ready, daemon=True).start()

    def _answer_is_ready(self) -> None:
        try:
            ready, reason = self._backend.is_ready(), ""
            if not ready:
                reason = "Model '{}' is not ready (user-defined check failed).".format(self._host.instance)
        except BaseException as error:
            ready, reason = False, describe(error)
        self._control.send("readiness", ready=ready, reason=reason)

    # The end

    def _finalize(self) -> None:
        self._channel.set_health(FINALIZING)
        for step in (self._backend.instance_finalize, self._backend.model_finalize, self._backend.finalize):
            try:
                step()
            except BaseException as error:
                self._host.log(codes.LOG_INFO, __file__, 0, describe(error))


def _break_off(error: BaseException) -> NoReturn:
    """Ends the stub after an error of its own, or a process that the model has forked and in which it left `execute`.

    At once, not as the interpreter would: that waits for the model's threads, which may be for ever, and in a forked
    process it would end what is the stub's, the workers of a pool for instance.
    """
    code = 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            code = error.code or 0
        else:
            traceback.print_exception(type(error), error, error.__traceback__)
    finally:
        _flush()
        os._exit(code & 0xFF)


def _leave() -> NoReturn:
    """Ends the process as an interpreter ends, but for threads that the model has left running: nobody waits for them.

    What models register with atexit, or weakref.finalize, cleans up after them: temporary folders, child processes.
    """
    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass  # it has been printed
    finally:
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a model may have put anything in their place
            stream.flush()
