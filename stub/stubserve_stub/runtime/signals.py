"""SIGINT, SIGTERM and SIGHUP in a stub, which it does not heed: the server ends its stubs, when it has their answers.

A Ctrl-C in the server's terminal goes to the whole group, and SIGHUP, which is for the server's log, may be sent to all
processes of a service. The handler is a function rather than SIG_IGN, so that programs which the model starts get the
default back. Processes that it forks get it too: `multiprocessing` terminates what it does not need any more, and would
wait for ever. The signals are held back until that is done, or one that comes right after the fork would get lost.
A SIGHUP that is ignored from the start, as under nohup, stays ignored in all of them.

The server's terminal is not for its stubs: who reads from it in the background would be stopped, and the server would
wait. As SIGTTIN and SIGTTOU are ignored, reading is an error instead.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Before(threading.local):
    """Of each thread, the signals that it held back before it forked."""

    mask: Any = ()


_before = _Before()


def leave_to_the_server() -> None:
    """From now on the signals do nothing in this process. For the main thread."""
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
