"""Requests that a model makes in processes which it has forked (`os.fork`, `multiprocessing`).

A ring has one writer and one reader, so a forked copy of the stub may not use the rings: both would overwrite each
other's messages. The copy is cut off from them (`Channel.cut_off`). Its requests go through a socket pair, made right
before each fork, to a thread of the stub that makes the request in its place. Forks may be nested: in a forked process
such a thread passes requests one process further up.

Tensors travel as bytes and are copied at every station; the responses of an iterator arrive together. A living forked
process costs the stub a socket and a thread. A process forked before `connect`, in `initialize`, can make none, as in
upstream.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any, Optional, Set, Tuple

from stubserve_stub.api import bls
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.outputs import InlinePlacer
from stubserve_stub.wire import messages
from stubserve_stub.wire.options import RequestOptions

_LENGTH = struct.Struct("=Q")


class Forks:
    """The processes that a stub's model forks. `instance` is what errors name."""

    def __init__(self, instance: str, channel: Channel) -> None:
        self._instance = instance
        self._channel = channel
        # Of each thread, the `sockets` for the process that it is about to fork
        self._pair = threading.local()
        # This process's ends towards what it has forked
        self._served: Set[socket.socket] = set()
        # In a forked process: its end towards its parent, and the lock for one request at a time
        self._forker: Optional[socket.socket] = None
        self._turn = threading.Lock()

    def connect(self) -> None:
        """Lets processes that are forked from now on make requests. It cannot be undone."""
        os.register_at_fork(before=self._prepare, after_in_parent=self._go_on, after_in_child=self._begin)

    def _prepare(self) -> None:
        try:
            self._pair.sockets = socket.socketpair()
        except OSError:
            self._pair.sockets = None  # no descriptors left; only a request of that process would need them

    def _go_on(self) -> None:
        pair, self._pair.sockets = self._pair.sockets, None
        if pair is not None:
            ours, theirs = pair
            theirs.close()
            self._served.add(ours)
            threading.Thread(target=self._serve, args=(ours,), name="stubserve-fork", daemon=True).start()

    def _begin(self) -> None:
        pair, self._pair.sockets = self._pair.sockets, None
        # A process that kept them open would hide the end of the other side.
        for served in self._served:
            served.close()
        self._served.clear()
        if self._forker is not None:
            self._forker.close()
        self._channel.cut_off(self._refuse)
        self._forker, self._turn = None, threading.Lock()
        if pair is not None:
            pair[0].close()
            self._forker = pair[1]
        bls.relay(self._execute)

    def _refuse(self, *_: Any) -> Any:
        raise TritonModelException(
            f"Model instance '{self._instance}' can do this only in its own process, not in one that it has forked; "
            "such a process can make requests to other models."
        )

    def _serve(self, forked: socket.socket) -> None:
        """Makes the requests of a forked process until it ends."""
        with forked:
            try:
                message = _receive(forked)
                while message is not None:
                    _send(forked, _answer(*message))
                    message = _receive(forked)
            except OSError:
                pass  # it has ended in the middle of a message
        self._served.discard(forked)

    def _execute(self, target: bls.Target, request: bls.Request, decoupled: bool) -> Any:
        """As `bls.execute`, through the parent of this process; an iterator has all of its responses at once."""
        # Answers come as bytes, whatever memory the request prefers.
        *head, names, tensors, _ = request
        inputs = [_wire_input(tensor) for tensor in tensors]
        answer = None
        if self._forker is not None:
            with self._turn:
                try:
                    _send(self._forker, (target, (*head, list(names), inputs), decoupled))
                    answer = _receive(self._forker)
                except OSError:
                    pass
        if answer is None:
            raise TritonModelException(
                f"The request to model '{target[0]}' cannot be made or was lost: this process was forked by model "
                f"instance '{self._instance}', which has ended or had no file descriptor left."
            )
        refusal, wires = answer
        if refusal is not None:
            raise TritonModelException(refusal)
        responses = [bls.received(self._channel, wire) for wire in wires]
        return bls.ResponseIterator._of(responses) if decoupled else responses[0]


def _answer(target: bls.Target, request: Any, decoupled: bool) -> Tuple[Optional[str], Any]:
    """(text of the exception of `bls.execute` or None, responses) for a request of a forked process."""
    id, options, trace, names, tensors = request
    inputs = [Tensor._received(name, datatype, shape, data, None) for name, datatype, shape, data in tensors]
    try:
        answer = bls.execute(target, (id, RequestOptions(*options), trace, names, inputs, bls.ON_HOST), decoupled)
        return None, [_wire(response) for response in (answer if decoupled else (answer,))]
    except TritonModelException as refused:
        return str(refused), ()


def _wire_input(tensor: Tensor) -> Any:
    datatype, shape, buffer = tensor._payload()
    return (tensor._name, datatype, shape, InlinePlacer().place(buffer))


def _wire(response: InferenceResponse) -> Any:
    return response._encode([tensor._name for tensor in response._output_tensors], InlinePlacer())


def _send(to: socket.socket, message: Any) -> None:
    data = messages.pack(message)
    to.sendall(_LENGTH.pack(len(data)))
    to.sendall(data)


def _receive(source: socket.socket) -> Any:
    """The next message; None when the other side has ended."""
    head = _read(source, _LENGTH.size)
    data = None if head is None else _read(source, _LENGTH.unpack(head)[0])
    return None if data is None else messages.unpack(data)


def _read(source: socket.socket, nbytes: int) -> Optional[bytearray]:
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        got = source.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data
