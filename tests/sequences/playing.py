"""Requests of sequences, and an owner that plays a table of them against a scheduler by a fake clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from stubserve.errors import ServeError
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.inference.work import Work
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler
from tests.schedulers.requests import MS, request

FLAGS = {"start": SEQUENCE_START, "end": SEQUENCE_END, "both": SEQUENCE_START | SEQUENCE_END, "": 0}


def config_of(
    strategy: str, max_batch_size: int = 4, idle_ms: int = 1000, dims: str = "1", controls: str = "", more: str = ""
) -> Any:
    """The configuration of a model "m"."""
    text = f"""
        name: "m" backend: "python" max_batch_size: {max_batch_size} {more}
        input {{ name: "IN" data_type: TYPE_INT32 dims: [{dims}] }}
        output {{ name: "OUT" data_type: TYPE_INT32 dims: [1] }}
        sequence_batching {{ {strategy} max_sequence_idle_microseconds: {idle_ms * 1000} {controls} }}
    """
    return normalise(parse_text(text, "config.pbtxt"), "m", None)


def scheduler_of(
    strategy: str, max_batch_size: int = 4, idle_ms: int = 1000, controls: str = "", dims: str = "1", more: str = ""
) -> Scheduler:
    """The scheduler of such a model."""
    return create_scheduler(config_of(strategy, max_batch_size, idle_ms, dims, controls, more))


def step(
    id: object, sequence: int | str, flag: str = "", timeout_ms: int = 0, width: int = 1, size: int = 1
) -> Request:
    """One request of a sequence."""
    timeout_us = timeout_ms * 1000
    return request(id, size, timeout_us=timeout_us, width=width, correlation_id=sequence, flags=FLAGS[flag])


def places(work: Work) -> list[str | None]:
    """The ids in the slots of a batch, None for one that is empty."""
    return [None if slot is None else slot.id for slot in work.slots]


class Play:
    """Plays requests at times (ms), with instances that take `busy_ms` for a batch, until nothing happens any more.

    `log` has (ms, instance, places) of each batch, `failed` (ms, id, text) of each answer and refusal.
    """

    def __init__(self, scheduler: Scheduler, instances: Sequence[Hashable] = ("i",), busy_ms: int = 10) -> None:
        self.scheduler = scheduler
        self.log: list[tuple[int, Hashable, list[str | None]]] = []
        self.failed: list[tuple[int, str, str]] = []
        self._busy_ns = busy_ms * MS
        self._busy: dict[Hashable, tuple[int, Work]] = {}
        self._now_ns = 0
        self._wake_ns: int | None = None
        for instance in instances:
            scheduler.instance_idle(instance)

    def enqueue(self, at_ms: int, *requests: Request) -> None:
        """Requests that arrive together."""
        self.until(at_ms)
        for one in requests:
            try:
                self.scheduler.enqueue(one, self._now_ns)
            except ServeError as refusal:
                self.failed.append((at_ms, one.id, refusal.message))
        self.poll()

    def cancel(self, at_ms: int, one: Request) -> None:
        self.until(at_ms)
        self.scheduler.cancel(one)
        self.poll()

    def lose(self, at_ms: int, instance: Hashable) -> list[str]:
        """An instance dies; the ids of what it executed."""
        self.until(at_ms)
        _, work = self._busy.pop(instance, (0, None))
        self.scheduler.instance_gone(instance)
        self.poll()
        return [] if work is None else [one.id for one in work.requests]

    def join(self, at_ms: int, instance: Hashable) -> None:
        self.until(at_ms)
        self.scheduler.instance_idle(instance)
        self.poll()

    def until(self, at_ms: int | None = None) -> None:
        """Lets time pass, until nothing is to come if it is not said for how long."""
        while True:
            self.poll()
            coming = [until_ns for until_ns, _ in self._busy.values()]
            if self._wake_ns is not None:
                coming.append(self._wake_ns)
            if at_ms is not None and (not coming or min(coming) > at_ms * MS):
                self._now_ns = at_ms * MS
                return
            if not coming:
                return
            self._now_ns = max(self._now_ns, min(coming))
            for instance in [i for i, (until_ns, _) in self._busy.items() if until_ns <= self._now_ns]:
                _, work = self._busy.pop(instance)
                self.scheduler.work_done(instance, work)
                self.scheduler.instance_idle(instance)

    def poll(self) -> None:
        decision = self.scheduler.poll(self._now_ns)
        assert decision.wake_at_ns is None or decision.wake_at_ns > self._now_ns, "it would be asked for ever"
        self._wake_ns = decision.wake_at_ns
        for instance, work in decision.run:
            assert instance not in self._busy
            self._busy[instance] = (self._now_ns + self._busy_ns, work)
            self.log.append((self._now_ns // MS, instance, places(work)))
        self.failed += [(self._now_ns // MS, one.id, error.message) for one, error in decision.answer]

    @property
    def batches(self) -> list[list[str | None]]:
        return [batch for _, _, batch in self.log]
