"""One call of `execute`, and the wait for the responses that senders still owe."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Sequence
from typing import Any

from stubserve_stub.api.sender import Key, Senders
from stubserve_stub.backends.python.batch import ModelBatch
from stubserve_stub.backends.python.model import ContractBroken, Model, raised_by
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.outputs import InlinePlacer
from stubserve_stub.runtime.states import States, StateSpec
from stubserve_stub.wire import messages

from stubserve.testing.request import Prepared
from stubserve.testing.surroundings import log_line

# Stands for the coroutine of a decoupled model among the keys of open requests.
_COROUTINE = "coroutine"


class LocalChannel(InlinePlacer):
    """In place of the rings: responses go into a queue, and tensors are copied into their messages.

    The stub's classes use it as they use `stubserve_stub.runtime.channel.Channel`.

    `news` gets (key, wire response or None, whether it is final), and None when a sender was dropped. It is a simple
    queue because a destructor may put into it.
    """

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.senders: Senders | None = None

    def respond(self, key: Key, start_ns: int, wire: Any, acknowledge: bool) -> None:
        self.news.put((key, wire, False))
        if acknowledge and self.senders is not None:
            # The reader of a queue is never behind.
            self.senders.acknowledge(key)

    def respond_last(self, key: Key, start_ns: int, wire: Any, tensors: list[Any]) -> None:
        self.news.put((key, wire, True))

    def poke(self) -> None:
        self.news.put(None)


class LocalExecutor:
    """Executes batches on one initialized model."""

    def __init__(self, model: Model, instance: str, decoupled: bool, states: Sequence[StateSpec] = ()) -> None:
        self._model = model
        self._instance = instance
        self._decoupled = decoupled
        self.channel = LocalChannel()
        self._senders = Senders(self.channel, decoupled)
        self.channel.senders = self._senders
        self._numbers = itertools.count(1)
        # The implicit states of sequences, and by correlation id the numbers of the sequences in them
        self._states = None
        if states:
            self._states = States(instance, states, self.channel, log=log_line)  # type: ignore[arg-type]
        self._sequences: dict[Any, int] = {}

    def run(self, requests: list[Prepared], timeout: float) -> list[list[Any]]:
        """The wire responses to each request. Requests that the model reschedules are executed again, as one batch.

        Raises what the model raises, and AssertionError if it breaks its contract or is silent for `timeout` seconds.
        """
        responses: list[list[Any]] = [[] for _ in requests]
        deadline = time.monotonic() + timeout
        waiting = list(range(len(requests)))
        while waiting:
            assert time.monotonic() < deadline, f"'{self._instance}' still rescheduled requests after {timeout} s"
            number = next(self._numbers)
            entries, opened = self._execute(number, [requests[index] for index in waiting])
            keys = {(number, at): index for at, index in enumerate(waiting)}
            for at, entry in enumerate(entries):
                if isinstance(entry, tuple):
                    responses[waiting[at]].append(entry)
            self._collect(keys, opened, responses, deadline, timeout)
            waiting = [index for at, index in enumerate(waiting) if entries[at] == messages.RESCHEDULED]
        return responses

    def _execute(self, number: int, requests: list[Prepared]) -> tuple[list[Any], set[Any]]:
        wires = [request.wire for request in requests]
        sequences = [self._sequences.setdefault(wire[1].correlation_id, len(self._sequences) + 1) for wire in wires]
        wire_batch = Batch(self.channel, number, wires, sequences)  # type: ignore[arg-type]
        batch = ModelBatch(wire_batch, self._senders, [], self._states)
        for received, request in zip(batch.requests, requests, strict=True):
            received._cancelled = request.cancelled
        opened: set[Any] = set()
        try:
            result = self._model.execute(list(batch.requests))
            if self._decoupled:
                future = self._model.start(self._instance, result)
                entries = batch.left_open()
                if future is not None:
                    opened.add(_COROUTINE)
                    future.add_done_callback(lambda ended: self.channel.news.put((_COROUTINE, raised_by(ended), True)))
            else:
                entries = batch.encode(batch.check(self._model.wait(result)))
        except ContractBroken as broken:
            batch.give_up_senders(str(broken))
            raise AssertionError(str(broken)) from None
        except BaseException as raised:
            batch.give_up_senders(repr(raised))
            raise
        finally:
            batch.end_updates()
        opened.update((number, at) for at, entry in enumerate(entries) if entry is None)
        # Objects that the model has let go of must not be kept alive from here.
        batch.release()
        return entries, opened

    def _collect(
        self, keys: dict[Any, int], opened: set[Any], responses: list[list[Any]], deadline: float, timeout: float
    ) -> None:
        while opened:
            try:
                news = self.channel.news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                silent = sorted(keys[key] for key in opened if key != _COROUTINE)
                what = f"sent no TRITONSERVER_RESPONSE_COMPLETE_FINAL for requests {silent}" if silent else "still runs"
                raise AssertionError(f"'{self._instance}' {what} after {timeout} s") from None
            if news is None:
                self._senders.report_dropped(self._instance)
                continue
            key, what, final = news
            if key not in opened:
                continue
            if final:
                opened.discard(key)
            if key == _COROUTINE:
                if what is not None:
                    raise what
            elif what is not None:
                responses[keys[key]].append(what)
