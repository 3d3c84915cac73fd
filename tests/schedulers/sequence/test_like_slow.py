"""Random schedules: the sequence batcher does what its rules say, and wakes when they need it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.work import Work
from stubserve.schedulers.sequence.batcher import SequenceBatcher

from .playing import places, scheduler_of, step
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
        sizes = "".join(f" preferred_batch_size: {size}" for size in rules.preferred)
        strategy = f"oldest {{ max_candidate_sequences: {rules.candidates} {delay} {sizes} }}"
    else:
        strategy = f"direct {{ {delay} minimum_slot_utilization: {rules.utilization} }}"
    dims = "-1" if rules.by_shape else "1"
    scheduler = scheduler_of(strategy, rules.max_batch_size, rules.idle_ms, dims=dims)
    assert isinstance(scheduler, SequenceBatcher)
    return scheduler


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
                self.compare_sequences()

    def compare_sequences(self) -> None:
        going_on = {one.id for one in self.slow.sequences if one.open}
        assert {id for id in IDS if self.fast.holds(id)} == going_on


SEQUENCES = st.sampled_from([*IDS, 0])
EVENT = st.one_of(
    *[
        st.tuples(
            st.just("enqueue"),
            SEQUENCES,
            st.sampled_from(["start", "start", "", "", "", "end", "both"]),
            st.sampled_from([0, 0, 0, 5, 40]),
            st.integers(1, 2),
        )
    ]
    * 5,
    *[st.tuples(st.just("finish"), st.integers(0, 3))] * 2,
    *[st.tuples(st.just("advance"), st.sampled_from([1, 1, 2, 7, 30, 110]))] * 2,
    st.tuples(st.just("cancel"), st.integers(0, 7)),
    st.tuples(st.just("join")),
    st.tuples(st.just("lose"), st.integers(0, 3)),
)
EVENTS = st.lists(st.tuples(EVENT, st.booleans()), min_size=15, max_size=50)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    max_batch_size = draw(st.sampled_from([0, 1, 2, 4]))
    return Rules(
        oldest=draw(st.booleans()),
        max_batch_size=max_batch_size,
        candidates=draw(st.integers(1, 4)),
        delay_ms=draw(st.sampled_from([0, 0, 3, 20])),
        utilization=draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])),
        preferred=draw(st.lists(st.integers(1, max_batch_size), max_size=2)) if max_batch_size else [],
        idle_ms=draw(st.sampled_from([6, 50, 100])),
        by_shape=draw(st.booleans()),
    )


@settings(deadline=None, max_examples=1000)
@given(rules(), st.integers(0, 2), EVENTS)
def test_the_sequence_batcher_follows_its_rules_whatever_happens(rules, instances, events):
    both = Both(rules)
    for _ in range(instances):
        both.join()
    both.poll()
    for (name, *arguments), polled in events:
        getattr(both, name)(*arguments)
        # Several requests may come before the scheduler is asked.
        if polled or name != "enqueue":
            both.poll()
    both.join()
    both.poll()
    for _ in range(len(both.requests) + 3):
        both.advance(both.slow.rules.idle_ms + 25)
        both.finish(0)
        both.finish(0)
        both.finish(0)
        both.poll()
    assert not both.waiting
    assert both.fast.drain() == []
