"""The process of a stub: how it begins, and how it ends.

It ignores SIGINT and SIGTERM, because the server ends its stubs when it has their answers: a Ctrl-C in the server's
terminal goes to the whole group. SIGHUP, which is for the server's log, and SIGUSR1, which drains the server, may go to
a whole service, too. The handler is a function and not SIG_IGN, so programs that the model starts get the default back.
Processes that it forks get the default, too, because `multiprocessing` ends its workers by SIGTERM and waits for them.
The signals are held back until that is done. A SIGHUP that is ignored from the start, as under nohup, stays ignored.

A stub may not use the server's terminal: if it read from it in the background, the kernel would stop it, and the server
would wait. SIGTTIN and SIGTTOU are ignored, so reading is an error instead.

`breakpoint()` in a model opens a debugger on the server's terminal if the stub has been given that. A stub's output
goes through the server, line by line, which does not suit a debugger. So at its first breakpoint such a stub also takes
the terminal for its output, and keeps it. Without a terminal a debugger would fail the request at once; so the model
goes on, with a line in the log. PYTHONBREAKPOINT works as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn, Sequence

from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.failure import Refusal, describe, for_log
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.seats import Seats
from stubserve_stub.wire import codes

# As for the processes of a browser's pages: counts as a third of all memory on top of the memory in use
_OOM_SCORE = 300


def run(arena: int, control: int) -> NoReturn:
    """Runs a stub until the parent says stop. The arguments are inherited descriptors."""
    _prepare((arena, control))
    line = Control(control)
    boot = line.inbox.get()
    if "regions" in boot:
        os.set_inheritable(boot["regions"], False)
    try:
        backend = load(boot["backend"])()
        for place in boot["limits_threads"] if boot["threads"] else ():
            load(place)(boot["threads"])
    except Exception as error:  # of a package, or a mistake of the environment
        wrong = _not_importable(boot["backend"], error)
        line.send("failed", stage="import", error=describe(wrong), log=for_log(wrong))
        _leave()
    devices = None
    if "devices" in boot:
        from stubserve_stub.runtime.devices import Devices  # not at the top: only servers with GPUs need it

        os.set_inheritable(boot["devices"]["line"], False)
        devices = Devices(boot["devices"], line)
    host = Host(boot["instance"], line, boot["settings"], boot.get("check_outputs", "never"))
    _connect_breakpoints(host, boot.get("terminal", False))
    try:
        Seats(arena, host, line, boot, backend, _break_off, devices).run()
    except BaseException as error:
        _break_off(error)
    _leave()


def load(place: str) -> Any:
    """What a backend's card names as "module:name"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _not_importable(place: str, error: Exception) -> Exception:
    """Why a backend cannot be imported: a sentence if its package is missing, else the error."""
    package = place.partition(".")[0]
    if not isinstance(error, ImportError) or error.name != package:
        return error
    return Refusal(
        f"the environment {sys.prefix} does not have the module {package}, which runs the model's backend: install its "
        "package there, too"
    )


def _prepare(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        # Not for programs that the model starts or becomes.
        os.set_inheritable(descriptor, False)
    _leave_signals_to_the_server()
    faulthandler.enable()
    # All stubs share the server's output, so a line is written in one piece, under PYTHONUNBUFFERED, too.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(15, b"triton_python_backend_stub", 0, 0, 0)  # PR_SET_NAME, cut to 15 letters by the kernel
        prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: for a model that holds the GIL when the parent dies
    # When memory runs out, the kernel shall kill a stub and not the server, which is charged for all tensors.
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj") as file:
            score = int(file.read())
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(min(score + _OOM_SCORE, 1000)))


def _break_off(error: BaseException) -> NoReturn:
    """Ends the stub after an error of its own, or a process that the model has forked when it leaves `execute`.

    It ends at once. The interpreter's own exit waits for the model's threads, perhaps for ever, and would in a forked
    process end what belongs to the stub, for instance the workers of a pool.
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
    """Ends the process as an interpreter does, but does not wait for threads that the model has left running.

    What models register with atexit or weakref.finalize cleans up: temporary folders, child processes.
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


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


# Of each thread: the signals that it held back before it forked
_before = threading.local()


def _leave_signals_to_the_server() -> None:
    """Has the signals do nothing in this process from now on. For the main thread."""
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stay)
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_go)


def _stay(*_: Any) -> None:
    pass


def _hold_back() -> None:
    _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _go() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is _stay:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_through()


def _connect_breakpoints(host: Host, terminal: bool) -> None:
    """Makes `breakpoint()` work in this stub from now on."""
    default = sys.breakpointhook
    told = set()

    def on_breakpoint(*arguments: Any, **named: Any) -> Any:
        if terminal:
            _take_terminal()
        frame = sys._getframe(1)
        if os.environ.get("PYTHONBREAKPOINT"):
            return default(*arguments, **named)
        if terminal:
            # As `pdb.set_trace`, but in the model's frame: `set_trace` would stop here, in its caller.
            import pdb

            pdb.Pdb().set_trace(frame)
            return None
        file, line = frame.f_code.co_filename, frame.f_lineno
        if (file, line) not in told:
            told.add((file, line))
            text = (
                f"instance '{host.instance}' went on at a breakpoint() in {file}, line {line}: it has no terminal. "
                "Start the server with --debug-model=NAME, where NAME is the model's, or with --dev, to stop there."
            )
            host.log(codes.LOG_WARNING, file, line, text)
        return None

    sys.breakpointhook = on_breakpoint


def _take_terminal() -> None:
    if os.isatty(0) and not os.isatty(1):
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = os.open(os.ttyname(0), os.O_RDWR)
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        os.close(terminal)
