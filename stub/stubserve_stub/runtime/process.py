"""The process of a stub: how it begins, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from typing import NoReturn, Sequence

from stubserve_stub.backends.find import find
from stubserve_stub.runtime import breakpoints, signals
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.main_loop import MainLoop
from stubserve_stub.wire.budget import Grant
from stubserve_stub.wire.stub_arena import StubArena

# What browsers give the processes of their pages: a third of all memory on top of what they use
_OOM_SCORE = 300


def run(arena: int, control: int, *doorbells: int) -> NoReturn:
    """Is a stub until the parent says stop. The arguments are inherited descriptors.

    The doorbells are those of requests, of responses, and of answers to the model's own requests.
    """
    _prepare((arena, control, *doorbells))
    line = Control(control)
    boot = line.inbox.get()
    if "regions" in boot:
        os.set_inheritable(boot["regions"], False)
    # Before the parent sees any progress: what cannot be imported in an environment is a mistake of the environment.
    backend = find(boot["backend"])
    channel = Channel(StubArena(arena, boot["arena"], boot["segment"], Grant()), *doorbells)
    channel.memory.connect(line)
    host = Host(boot["instance"], channel, line, boot["settings"], boot.get("check_outputs", "never"))
    breakpoints.connect(host, boot.get("terminal", False))
    try:
        MainLoop(host, boot, backend).run()
    except BaseException as error:
        _break_off(error)
    _leave()


def _prepare(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        # Not for other programs: neither those that the model starts, nor one that it becomes.
        os.set_inheritable(descriptor, False)
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
