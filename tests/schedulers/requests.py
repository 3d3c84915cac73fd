"""Requests for the scheduler tests, and an owner that keeps a scheduler busy by a fake clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Decision, Work
from stubserve.schedulers.base import Scheduler
from tests.inference.models import request as make

MS = 1_000_000
INT32 = BY_NAME["INT32"].number


def request(
    id: object = "",
    size: int = 1,
    priority: int = 0,
    timeout_us: int = 0,
    optional: int | None = None,
    width: int = 1,
    **fields: Any,
) -> Request:
    """A request with an input IN of shape [size, width], and OPT of shape [size, optional] if that is given."""
    inputs = [Tensor("IN", INT32, [size, width], bytes(4 * size * width))]
    if optional is not None:
        inputs.append(Tensor("OPT", INT32, [size, optional], bytes(4 * size * optional)))
    return make(*inputs, id=str(id), priority=priority, timeout_us=timeout_us, batch_size=size, **fields)


def ids(requests: Sequence[Request]) -> list[str]:
    return [r.id for r in requests]


def batches(decision: Decision) -> list[list[str]]:
    """The ids in each batch of a decision."""
    return [ids(work.requests) for _, work in decision.run]


def answers(decision: Decision) -> list[tuple[str, str]]:
    """The id and the error text of each answer of a decision."""
    return [(r.id, error.message) for r, error in decision.answer]


class Run:
    """Runs a scheduler with instances that take `busy_ns` per batch, until nothing happens any more.

    `log` has (time, instance, ids) of each batch, `failed` (time, id, error) of each answer and refusal.
    """

    def __init__(self, scheduler: Scheduler, instances: Sequence[Hashable], busy_ns: int) -> None:
        self.scheduler = scheduler
        self.now_ns = 0
        self.log: list[tuple[int, Hashable, list[str]]] = []
        self.failed: list[tuple[int, str, ServeError]] = []
        self._busy_ns = busy_ns
        self._busy_until: dict[Hashable, tuple[int, Work]] = {}
        for instance in instances:
            scheduler.instance_idle(instance)

    def enqueue(self, requests: Sequence[Request]) -> None:
        for r in requests:
            try:
                self.scheduler.enqueue(r, self.now_ns)
            except ServeError as refusal:
                self.failed.append((self.now_ns, r.id, refusal))

    def poll(self) -> Decision:
        decision = self.scheduler.poll(self.now_ns)
        for instance, work in decision.run:
            assert instance not in self._busy_until
            self._busy_until[instance] = (self.now_ns + self._busy_ns, work)
            self.log.append((self.now_ns, instance, ids(work.requests)))
        self.failed += [(self.now_ns, r.id, error) for r, error in decision.answer]
        return decision

    def until_quiet(self) -> None:
        """Polls whenever the scheduler asked for it or an instance finishes; ends when neither is to come."""
        while True:
            wake_ns = self.poll().wake_at_ns
            coming = [*(until for until, _ in self._busy_until.values()), *([] if wake_ns is None else [wake_ns])]
            if not coming:
                return
            assert min(coming) > self.now_ns
            self.now_ns = min(coming)
            for instance in [i for i, (until, _) in self._busy_until.items() if until <= self.now_ns]:
                _, work = self._busy_until.pop(instance)
                self.scheduler.work_done(instance, work)
                self.scheduler.instance_idle(instance)

    @property
    def batches(self) -> list[list[str]]:
        return [batch for _, _, batch in self.log]
