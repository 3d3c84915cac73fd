"""Random schedules: the sequence batcher does what its rules say, and wakes when they need it.

A schedule is a string of bytes, four for each event. Drawing these with hypothesis would take as long as playing them.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Iterator

import pytest
from hypothesis import settings

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.work import Work
from stubserve.schedulers.factory import create_scheduler
from stubserve.sequences.batcher import SequenceBatcher

from .playing import config_of, places, step
from .slow import MS, Rules, Slow

IDS: tuple[int | str, ...] = (1, 2, 3, 4, 5, "1", "x")
KINDS = {
    "was cancelled": "cancelled",
    "has been expired": "expired",
    "is gone": "lost",
    "must specify the START": "not started",
    "correlation ID": "no id",
}


def kind(error: ServeError) -> str:
    return next(name for text, name in KINDS.items() if text in error.message)


def fast(rules: Rules) -> SequenceBatcher:
    delay = f"max_queue_delay_microseconds: {rules.delay_ms * 1000}"
    if rules.oldest:
        fitting = [size for size in rules.preferred if size <= max(1, rules.max_batch_size)]
        sizes = "".join(f" preferred_batch_size: {size}" for size in fitting)
        strategy = f"oldest {{ max_candidate_sequences: {rules.candidates} {delay} {sizes} }}"
    else:
        strategy = f"direct {{ {delay} minimum_slot_utilization: {rules.utilization} }}"
    if rules.iterative:
        strategy += " iterative_sequence: true"
    dims = "-1" if rules.by_shape else "1"
    scheduler = create_scheduler(parsed(strategy, rules.max_batch_size, rules.idle_ms, dims))
    assert isinstance(scheduler, SequenceBatcher)
    return scheduler


parsed = functools.cache(config_of)


class Both:
    """Tells both the same, and compares what they say."""

    def __init__(self, rules: Rules) -> None:
        self.fast = fast(rules)
        self.slow = Slow(rules)
        self.now_ms = 0
        self.wake_ms: int | None = None
        self.requests: list[Request] = []
        self.busy: dict[int, Work] = {}
        self.instances = 0
        # Those that have neither run nor been answered
        self.waiting: set[str] = set()

    def enqueue(self, sequence: int | str, flag: str, timeout_ms: int, width: int) -> None:
        request = step(len(self.requests), sequence, flag, timeout_ms, width)
        self.requests.append(request)
        try:
            self.fast.enqueue(request, self.now_ms * MS)
            refused = ""
        except ServeError as error:
            refused = kind(error)
        # Both see the same object: the scheduler has set when it was queued.
        assert refused == self.slow.enqueue(request, self.now_ms)
        if not refused:
            self.waiting.add(request.id)

    def cancel(self, index: int) -> None:
        if self.requests:
            request = self.requests[-1 - index % min(8, len(self.requests))]
            self.fast.cancel(request)
            self.slow.cancel(request)

    def close(self, index: int) -> None:
        """An instance is to go when its sequences are over."""
        there = sorted({*self.slow.idle, *self.busy})
        if there:
            instance = there[index % len(there)]
            self.fast.close_instance(instance)
            self.slow.closed.append(instance)

    def join(self) -> None:
        self.fast.instance_idle(self.instances)
        self.slow.join(self.instances)
        self.instances += 1

    def finish(self, index: int) -> None:
        if self.busy:
            instance = list(self.busy)[index % len(self.busy)]
            work = self.busy.pop(instance)
            self.fast.work_done(instance, work)
            self.fast.instance_idle(instance)
            self.slow.done(instance, list(work.requests))

    def reschedule(self, index: int, which: int) -> None:
        """One of the requests that execute is to be executed again."""
        if self.busy:
            instance = list(self.busy)[index % len(self.busy)]
            requests = self.busy[instance].requests
            for request in requests[which % len(requests) :]:
                again = self.fast.reschedule(request, self.now_ms * MS)
                assert again == self.slow.rules.iterative
                if again:
                    self.slow.reschedule(request, self.now_ms)
                    self.waiting.add(request.id)
            self.finish(index)

    def lose(self, index: int) -> None:
        there = sorted({*self.slow.idle, *self.busy})
        if there:
            instance = there[index % len(there)]
            self.busy.pop(instance, None)
            self.fast.instance_gone(instance)
            self.slow.lose(instance)

    def poll(self) -> None:
        runs, answers = self.slow.poll(self.now_ms)
        decision = self.fast.poll(self.now_ms * MS)
        assert sorted((request.id, kind(error)) for request, error in decision.answer) == sorted(answers)
        assert sorted((instance, places(work)) for instance, work in decision.run) == sorted(runs)
        for instance, work in decision.run:
            self.busy[instance] = work
            self.waiting -= {request.id for request in work.requests}
        self.waiting -= {request.id for request, _ in decision.answer}
        assert self.fast.queued == len(self.waiting)
        self.compare_sequences()
        assert decision.wake_at_ns is None or decision.wake_at_ns > self.now_ms * MS
        self.wake_ms = None if decision.wake_at_ns is None else -(-decision.wake_at_ns // MS)

    def advance(self, by_ms: int) -> None:
        """Each moment is looked at the slow way; the scheduler is asked only when it wanted to be."""
        self.poll()
        for _ in range(by_ms):
            self.now_ms += 1
            if self.wake_ms is not None and self.wake_ms <= self.now_ms:
                self.poll()
            else:
                assert self.slow.poll(self.now_ms) == ([], []), "nobody would have woken up for that"

    def compare_sequences(self) -> None:
        going_on = {one.id for one in self.slow.sequences if one.open}
        assert self.fast.sequences == len(going_on)
        assert all(self.fast.holds(id) for id in going_on)


# A byte for every kind of event
EACH_KIND = (0, 0, 0, 125, 125, 170, 181, 225, 236, 242, 250)
FLAGS = ("start", "start", "", "", "", "", "end", "both")


def play(both: Both, what: int, which: int, how: int, more: int) -> bool:
    """One event; whether the scheduler is asked at once. Several requests may come before it is."""
    if what < 120:
        sequence = 0 if which == 255 else IDS[which % len(IDS)]
        both.enqueue(sequence, FLAGS[how % len(FLAGS)], (0, 0, 5, 12)[more % 4], 1 + more // 4 % 2)
        return more >= 128
    if what < 165:
        both.finish(which)
    elif what < 180:
        both.reschedule(which, how)
    elif what < 220:
        both.advance((1, 1, 2, 4, 7, 19)[which % 6])
    elif what < 235:
        both.cancel(which)
    elif what < 240:
        both.close(which)
    elif what < 248:
        both.join()
    else:
        both.lose(which)
    return True


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Starts of sequences that run are logged, which would take longer than all else."""
    log = logging.getLogger("stubserve.scheduler")
    log.disabled = True
    yield
    log.disabled = False


Schedule = tuple[Rules, int, bytes]


def random_schedules(count: int) -> Iterator[Schedule]:
    """The same in every run, but for `--hypothesis-profile=search`."""
    source = random.Random(0 if settings.default and settings.default.derandomize else None)
    for _ in range(count):
        rules = Rules(
            oldest=source.random() < 0.5,
            max_batch_size=source.choice([0, 1, 2, 4]),
            candidates=source.randint(1, 4),
            delay_ms=source.choice([0, 0, 3, 9]),
            utilization=source.choice([0.0, 0.3, 0.5, 1.0]),
            preferred=source.choice([(), (), (1,), (2,), (1, 3)]),
            idle_ms=source.choice([4, 11, 17]),
            by_shape=source.random() < 0.5,
            iterative=source.random() < 0.25,
        )
        events = bytearray(source.randbytes(4 * source.randint(10, 40)))
        # Left to chance, half of the events are requests, and few are deaths, ends and joins of instances.
        for at in range(0, len(events), 4):
            if source.random() < 0.3:
                events[at] = source.choice(EACH_KIND)
        yield rules, source.randint(0, 2), bytes(events)


def shortened(rules: Rules, instances: int, events: bytes) -> Schedule:
    """A schedule that fails, without the events that it does not need for that."""
    at = 0
    while at < len(events):
        without = events[:at] + events[at + 4 :]
        try:
            play_all(rules, instances, without)
        except Exception:
            events = without
        else:
            at += 4
    return rules, instances, events


# Two instances that are idle, of which the second gets the first request, and a sequence in the backlog
SECOND_BEFORE_FIRST = (
    bytes(16)
    + b"\x00\x01\x02\x00\x00\x01\x02\x80"
    + b"x\x00\x00\x00" * 4
    + b"\xf0\x00\x00\x00\x00\x01\x00\x00\x00\x10\x07\x00\x00\xd4\x07\x00\x00\x02\x00\x80"
)
# A sequence waits for a slot behind the last request of another, and both are cancelled
BOTH_CANCELLED = bytes.fromhex("4e5f4f03e1ebc9b9705aa555233d9fbb0025df7ce1dc40aa00c34c5de1988dea05c058da")

FOUND = [
    (Rules(False, 2, 1, 0, 0.0, (), 4, False), 1, SECOND_BEFORE_FIRST),
    (Rules(True, 4, 3, 9, 0.5, (), 11, False), 2, BOTH_CANCELLED),
]


def play_all(rules: Rules, instances: int, events: bytes) -> None:
    both = Both(rules)
    for _ in range(instances):
        both.join()
    both.poll()
    for at in range(0, len(events) - 3, 4):
        if play(both, *events[at : at + 4]):
            both.poll()
    both.join()
    for _ in range(2 * len(both.requests) + 5):
        both.advance(rules.idle_ms + rules.delay_ms)
        while both.busy:
            both.finish(0)
        if not both.waiting:
            break
    both.poll()
    assert not both.waiting
    assert both.fast.drain() == []


@pytest.mark.parametrize("schedule", FOUND)
def test_what_was_found_once_stays_found(schedule: Schedule) -> None:
    play_all(*schedule)


def test_the_sequence_batcher_follows_its_rules_whatever_happens() -> None:
    for schedule in random_schedules(10_000):
        try:
            play_all(*schedule)
        except Exception:
            shortest = shortened(*schedule)
            print("FOUND needs:", shortest)
            play_all(*shortest)
            raise
