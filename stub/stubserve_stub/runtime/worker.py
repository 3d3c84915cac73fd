"""The stub's life: shake hands, load the model, serve batches until told to stop, finalize."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import platform
import signal
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence

import numpy as np

from stubserve_stub.api import bls, logger, metrics, model_control, shared_memory, utils
from stubserve_stub.api.exceptions import format_exception
from stubserve_stub.api.sender import InferenceResponseSender, Senders
from stubserve_stub.backends.python.batch import Batch
from stubserve_stub.backends.python.forks import Forks
from stubserve_stub.backends.python.model import ContractBroken, Model, import_model, raised_by
from stubserve_stub.runtime import session_threads, signals
from stubserve_stub.runtime.calls import Calls
from stubserve_stub.runtime.channel import EXECUTING, FINALIZING, IDLE, Channel
from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.questions import Questions
from stubserve_stub.wire import messages
from stubserve_stub.wire.arena import Arena, ArenaFull

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
        self._instance: str = boot["instance"]
        self._boot = boot
        self._arena = Arena.attach(arena)
        self._channel = Channel(self._arena, boot["segment"], request_doorbell, response_doorbell, answer_doorbell)
        self._output_names: Sequence[str] = ()
        self._model: Optional[Model] = None
        # The batch that runs, for cancellation, which arrives on the control thread
        self._current: Optional[Batch] = None
        self._cancelled: Dict[int, Sequence[int]] = {}
        self._newest = 0
        self._batch_guard = threading.Lock()
        self._decoupled = False
        self._senders = Senders(self._channel, False)

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
            text = str(error) if isinstance(error, ContractBroken) else format_exception(error)
            self._control.send("failed", stage=stage, error=text)
            _leave()

    def _load(self) -> bool:
        """Imports and initializes the model as the parent asks; False if the process was only to complete a config."""
        boot = self._boot
        with self._reporting("import"):
            utils.set_model_dir(boot["version_dir"])
            if boot["threads"]:
                session_threads.limit(boot["threads"])
            start = time.monotonic_ns()
            model = Model(import_model(boot["model_file"], boot["module"], boot["paths"]), boot["model_file"])
        self._control.send(
            "imported",
            completes_config=model.completes_config,
            methods=model.methods,
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
                    completed = model.complete_config(order["model"], order["config"])
                self._control.send("completed", config=completed)
                return False
            if order["kind"] == "initialize":
                break
        self._instance = order["instance"]
        self._output_names = order["outputs"]
        self._decoupled = self._senders.decoupled = order["decoupled"]
        logger.connect(self._log, self._channel.log_levels)
        questions = Questions(self._instance, self._control.send)
        self._control.handle("told", questions.on_told)
        model_control.connect(questions)
        shared_memory.connect(self._arena)
        metrics.connect(questions, self._control.send)
        with self._reporting("initialize"):
            model.initialize(order["arguments"])
        self._model = model
        self._channel.on_poke = self._report_dropped
        self._control.handle("cancel", self._on_cancel)
        self._control.handle("acknowledge", self._on_acknowledge)
        self._control.handle("is_ready", self._on_is_ready)
        bls.connect(Calls(self._channel, bls.received))
        Forks(self._instance, self._channel).connect()
        self._channel.set_health(IDLE)
        self._control.send("ready", checks_readiness=model.checks_readiness)
        return True

    def _log(self, level: int, file: str, line: int, text: str) -> None:
        self._control.send("log", level=level, file=file, line=line, message=text)

    # Serving

    def _serve(self) -> None:
        channel = self._channel
        while True:
            for message in channel.receive():
                kind = message[0]
                if kind == messages.EXECUTE:
                    channel.free(message[2])
                    self._execute(message[1], message[3])
                else:
                    return

    def _execute(self, number: int, wire_requests: Sequence[Any]) -> None:
        assert self._model is not None
        channel = self._channel
        batch = Batch(channel, self._senders, number, wire_requests, list(self._output_names))
        with self._batch_guard:
            self._current = batch
            self._newest = number
            for index in self._cancelled.pop(number, ()):
                batch.requests[index]._cancelled = True
        channel.set_health(EXECUTING, number)
        start = time.monotonic_ns()
        end = 0
        error = None
        wire: Any = []
        try:
            if self._decoupled:
                wire = self._execute_decoupled(batch)
            else:
                result = self._model.execute(list(batch.requests))
                end = time.monotonic_ns()
                wire = batch.encode(batch.check(result))
        except ContractBroken as broken:
            error = self._failure(str(broken))
        except BaseException as raised:  # SystemExit and KeyboardInterrupt of a model are its error too
            if os.getpid() != self._process:
                raise  # of a process that the model has forked, see run()
            error = self._failure(format_exception(raised))
        if error is not None:
            batch.give_up_senders(error)
        overflow = ""
        # Nobody reports that the model has let go of memory before the result that refers to it is under way.
        with channel.sending:
            result = None
            watches = batch.watches()
            with self._batch_guard:
                self._current = None
            batch.drop()
            held, wire = batch.settle(watches, wire)
            end = end or time.monotonic_ns()
            try:
                channel.send((messages.RESULT, number, start, end, wire, held, error))
            except ArenaFull as full:
                overflow = str(full)
        if overflow:
            batch.take_back(wire)
            self._senders.revoke(number)
            channel.send((messages.RESULT, number, start, end, [], held, overflow))
        channel.set_health(IDLE)

    def _execute_decoupled(self, batch: Batch) -> List[Any]:
        """Runs a decoupled model on a batch; a coroutine is only started, and may outlive many batches."""
        assert self._model is not None
        result, future = self._model.start(list(batch.requests))
        if result is not None:
            raise ContractBroken(
                "Python model '{}' is using the decoupled mode and the execute function must return None.".format(
                    self._instance
                )
            )
        entries = batch.left_open()
        if future is not None:
            future.add_done_callback(functools.partial(self._on_coroutine_end, batch.senders()))
        return entries

    def _on_coroutine_end(self, senders: List["weakref.ref[InferenceResponseSender]"], future: Any) -> None:
        raised = raised_by(future)
        if raised is None:
            return
        error = self._failure(format_exception(raised))
        for reference in senders:
            sender = reference()
            if sender is not None:
                sender._fail(error)

    def _report_dropped(self) -> None:
        for number, index in self._senders.report_dropped(self._instance):
            self._log(
                logger.WARNING_LEVEL,
                "worker.py",
                0,
                "Model '{}' let go of the response sender of request {} of batch {} without the final flag".format(
                    self._instance, index, number
                ),
            )

    def _failure(self, message: str) -> str:
        text = "Failed to process the request(s) for model '{}', message: {}".format(self._instance, message)
        self._log(logger.ERROR_LEVEL, "worker.py", 0, text)
        return text

    # On the control thread

    def _on_cancel(self, message: Dict[str, Any]) -> None:
        number, indices = message["batch"], message["indices"]
        with self._batch_guard:
            if self._current is not None and self._current.number == number:
                for index in indices:
                    self._current.requests[index]._cancelled = True
            elif number > self._newest:
                self._cancelled[number] = list(self._cancelled.get(number, ())) + indices
        for index in indices:
            self._senders.cancel((number, index))

    def _on_acknowledge(self, message: Dict[str, Any]) -> None:
        # The frees travel with it because the main thread may be in `execute` for as long as the stream lasts.
        self._channel.free(message["frees"])
        for number, index in message["groups"]:
            self._senders.acknowledge((number, index))

    def _on_is_ready(self, message: Dict[str, Any]) -> None:
        # A thread of its own: a slow answer must not hold up cancellations. The parent asks one question at a time.
        threading.Thread(target=self._answer_is_ready, daemon=True).start()

    def _answer_is_ready(self) -> None:
        assert self._model is not None
        try:
            ready, reason = self._model.is_ready(), ""
            if not ready:
                reason = "Model '{}' is not ready (user-defined check failed).".format(self._instance)
        except BaseException as error:
            ready, reason = False, format_exception(error)
        self._control.send("readiness", ready=ready, reason=reason)

    # The end

    def _finalize(self) -> None:
        assert self._model is not None
        self._channel.set_health(FINALIZING)
        bls.disconnect()
        try:
            self._model.finalize()
        except BaseException as error:
            self._log(logger.INFO_LEVEL, __file__, 0, format_exception(error))
        self._model = None


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
