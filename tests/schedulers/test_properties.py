"""Whatever happens in whatever order: what always holds for the schedulers.

`Owner` plays random events against a scheduler, keeps books of its own, and checks after every poll what must hold.
`expected_batch` is the rule of the dynamic batcher written the slow, literal way (server reference, decisions a to e).
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import ServeError
from stubserve.inference.request import Request
from stubserve.inference.work import Grouping
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.policy_queue import PriorityLevels, QueuePolicy

from .requests import request

US = 1000


@dataclass
class Rules:
    max_batch_size: int
    preferred: list[int]
    delay_us: int
    by_shape: bool
    priorities: PriorityLevels
    hold_until: int
    # What an instance wants at most, where the configuration leaves that open; 0 for no limit
    most: int = 0

    def batcher(self) -> DynamicBatcher:
        return DynamicBatcher(
            self.max_batch_size,
            self.preferred,
            self.delay_us,
            Grouping(["IN"] if self.by_shape else []),
            self.priorities,
            self.hold_until,
        )


def expected_batch(rules: Rules, waiting: list[Request], now_ns: int) -> int:
    """How many of the waiting requests, given in service order, an idle instance has to get now."""
    limit = max(1, rules.max_batch_size)
    preferred = set(rules.preferred) or {limit}
    pending = best = total = 0
    send_now = False
    is_open = not rules.delay_us and preferred == {limit}
    for r in waiting[: (is_open and rules.most) or None]:
        size = max(1, r.batch_size)
        if pending:
            if total + size > max(preferred) and best == 0:
                best = pending
            other_shape = rules.by_shape and r.inputs[0].shape[1:] != waiting[0].inputs[0].shape[1:]
            if total + size > limit or (other_shape and rules.max_batch_size > 1):
                send_now = True
                break
        pending += 1
        total += size
        if total in preferred:
            best = pending
    if pending == 0:
        return 0
    delay_exceeded = (
        rules.delay_us != 0 and now_ns - min(r.queue_start_ns for r in waiting[:pending]) >= rules.delay_us * US
    )
    if best and not delay_exceeded:
        return best
    if send_now or total >= max(preferred) or delay_exceeded or rules.delay_us == 0:
        return pending
    return 0


class Owner:
    def __init__(self, scheduler: Scheduler, rules: Rules | None) -> None:
        self.scheduler = scheduler
        self.rules = rules
        self.now_ns = 0
        self.wake_at_ns: int | None = None
        # In order of arrival, not yet ended
        self.waiting: list[Request] = []
        self.deadlines: dict[Request, int] = {}
        # Under the action DELAY, in the order in which they ran out of time
        self.delayed: list[Request] = []
        self.ended: set[Request] = set()
        self.idle: list[int] = []
        self.busy: list[int] = []
        self.instances = 0
        # Whether everything is kept back; and until when at the latest, and how many there were, once there are enough
        self.held = rules is not None and rules.hold_until > 0
        self.held_until_ns: int | None = None
        self.held_with = 0

    # Events

    def enqueue(self, size: int, priority: int, timeout_us: int, width: int) -> None:
        r = request(len(self.waiting) + len(self.ended), size, priority, timeout_us, width=width)
        policy = self.policy(r)
        full = policy.max_queue_size and policy.max_queue_size <= sum(
            self.level(other) == self.level(r) and not other.cancelled for other in self.waiting
        )
        try:
            self.scheduler.enqueue(r, self.now_ns)
        except ServeError:
            assert full
            return
        assert not full
        self.waiting.append(r)
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and r.options.timeout_us:
            timeout_us = min(timeout_us, r.options.timeout_us)
        if timeout_us:
            self.deadlines[r] = self.now_ns + timeout_us * US

    def cancel(self, index: int) -> None:
        if self.waiting:
            self.scheduler.cancel(self.waiting[index % len(self.waiting)])

    def start_instance(self) -> None:
        self.is_idle(self.instances)
        self.instances += 1

    def is_idle(self, instance: int) -> None:
        self.idle.append(instance)
        self.scheduler.instance_idle(instance, most=self.rules.most if self.rules else 0)

    def finish(self, index: int) -> None:
        if self.busy:
            self.is_idle(self.busy.pop(index % len(self.busy)))

    def lose(self, index: int) -> None:
        everyone = self.idle + self.busy
        if everyone:
            instance = everyone[index % len(everyone)]
            (self.idle if instance in self.idle else self.busy).remove(instance)
            self.scheduler.instance_gone(instance)

    def advance(self, step_us: int) -> None:
        """Lets time pass, polling whenever the scheduler asked for it."""
        until_ns = self.now_ns + step_us * US
        self.poll()
        while self.wake_at_ns is not None and self.wake_at_ns <= until_ns:
            self.now_ns = self.wake_at_ns
            self.poll()
        self.now_ns = until_ns

    # Books

    def level(self, r: Request) -> int:
        return self.rules.priorities.level_of(r.options.priority) if self.rules else 0

    def policy(self, r: Request) -> QueuePolicy:
        return self.rules.priorities.policy_of(self.level(r)) if self.rules else QueuePolicy()

    def end(self, r: Request) -> None:
        assert r in self.waiting, "ended twice, or never queued"
        self.waiting.remove(r)
        self.ended.add(r)

    def service_order(self) -> list[Request]:
        return sorted(
            self.waiting, key=lambda r: (self.level(r), self.delayed.index(r) + 1 if r in self.delayed else 0)
        )

    # The poll

    def poll(self) -> None:
        decision = self.scheduler.poll(self.now_ns)

        must_end = [r for r in self.waiting if r.cancelled]
        expired = [r for r in self.waiting if self.deadlines.get(r, self.now_ns + 1) <= self.now_ns and not r.cancelled]
        must_end += [r for r in expired if not self.policy(r).delay_expired]
        assert sorted(r.id for r, _ in decision.answer) == sorted(r.id for r in must_end)
        for r in sorted(expired, key=lambda r: self.deadlines[r]):
            if self.policy(r).delay_expired and r not in self.delayed:
                self.delayed.append(r)
        for r, _ in decision.answer:
            self.end(r)

        if self.held and self.rules:
            if self.held_until_ns is not None:
                self.held = len(self.waiting) <= self.held_with and self.now_ns < self.held_until_ns
            elif len(self.waiting) >= self.rules.hold_until:
                self.held_until_ns, self.held_with = self.now_ns + 10_000_000, len(self.waiting)
        for instance, work in decision.run:
            batch = list(work.requests)
            assert instance == self.idle.pop(0), "not the longest idle"
            self.busy.append(instance)
            order = self.service_order()
            assert batch == order[: self.expected(order)]
            if self.rules is not None:
                assert sum(max(1, r.batch_size) for r in batch) <= max(1, self.rules.max_batch_size)
            for r in batch:
                self.end(r)
        if self.idle:
            assert self.expected(self.service_order()) == 0, "an instance is idle and could run"

        assert self.scheduler.queued == len(self.waiting)
        self.wake_at_ns = decision.wake_at_ns
        assert self.wake_at_ns == self.expected_wake()

    def expected(self, order: list[Request]) -> int:
        if self.rules is None:
            return min(1, len(order))
        return 0 if self.held else expected_batch(self.rules, order, self.now_ns)

    def expected_wake(self) -> int | None:
        times = [self.deadlines[r] for r in self.waiting if r in self.deadlines and r not in self.delayed]
        if self.held and self.held_until_ns is not None:
            times.append(self.held_until_ns)
        if self.idle and self.waiting and not self.held:
            assert self.rules is not None
            times.append(min(r.queue_start_ns for r in self.waiting) + self.rules.delay_us * US)
        return min(times, default=None)

    def finish_everything(self) -> None:
        """However the events ended, a working instance gets everything to its end."""
        self.start_instance()
        self.poll()
        if self.held:
            for r in self.scheduler.drain():
                self.end(r)
        while self.waiting:
            if self.busy:
                self.finish(0)
                self.poll()
            else:
                assert self.wake_at_ns is not None, "requests wait, an instance is idle, and nobody will poll"
                self.now_ns = self.wake_at_ns
                self.poll()
        assert self.scheduler.queued == 0
        assert list(self.scheduler.drain()) == []


INSTANCES = st.integers(0, 3)
TIMES_US = st.sampled_from([0, 1, 1, 5, 20, 50, 100])
INDEX = st.integers(0, 30)
# Most events put something in: a queue that is always empty shows nothing.
ENQUEUE = st.tuples(
    st.just("enqueue"),
    st.sampled_from([1, 1, 1, 0, 2, 3, 5, 8]),
    st.integers(0, 4),
    st.sampled_from([0, 0, 3, 10, 60]),
    st.integers(1, 2),
)
EVENTS = st.lists(
    st.one_of(
        ENQUEUE,
        ENQUEUE,
        ENQUEUE,
        st.tuples(st.just("advance"), TIMES_US),
        st.tuples(st.just("advance"), TIMES_US),
        st.tuples(st.just("finish"), INDEX),
        st.tuples(st.just("finish"), INDEX),
        st.tuples(st.just("poll")),
        st.tuples(st.just("cancel"), INDEX),
        st.tuples(st.just("start_instance")),
        st.tuples(st.just("lose"), INDEX),
    ),
    # Hypothesis makes lists of about five by itself, and nothing waits for long in those.
    min_size=20,
    max_size=60,
)
POLICIES = st.builds(
    QueuePolicy,
    delay_expired=st.booleans(),
    default_timeout_us=st.sampled_from([0, 0, 10, 50]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 5]),
)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    max_batch_size = draw(st.sampled_from([0, 1, 2, 4, 8, 16, 16]))
    if draw(st.booleans()):
        priorities = PriorityLevels()
    else:
        count = draw(st.integers(0, 3))
        numbers = range(1, count + 1)
        priorities = PriorityLevels(
            count,
            draw(st.sampled_from(numbers)) if count else 0,
            draw(POLICIES),
            {n: draw(POLICIES) for n in numbers if draw(st.booleans())},
        )
    return Rules(
        max_batch_size,
        draw(st.lists(st.integers(1, max_batch_size), max_size=3)) if max_batch_size else [],
        draw(st.sampled_from([0, 0, 20, 100, 100])),
        draw(st.booleans()),
        priorities,
        draw(st.sampled_from([0, 0, 0, 4])),
        draw(st.sampled_from([0, 0, 1, 2, 3])),
    )


def play(owner: Owner, instances: int, events: list[tuple]) -> None:
    for _ in range(instances):
        owner.start_instance()
    for name, *arguments in events:
        if name == "enqueue":
            # No request is larger than max_batch_size: admission sees to it.
            size = min(arguments[0], max(1, owner.rules.max_batch_size if owner.rules else 8))
            owner.enqueue(size, *arguments[1:])
        else:
            getattr(owner, name)(*arguments)
    owner.finish_everything()


@settings(deadline=None, max_examples=300)
@given(rules(), INSTANCES, EVENTS)
def test_the_dynamic_batcher_follows_its_rules_whatever_happens(rules, instances, events):
    play(Owner(rules.batcher(), rules), instances, events)


@settings(deadline=None, max_examples=50)
@given(INSTANCES, EVENTS)
def test_the_default_scheduler_follows_its_rules_whatever_happens(instances, events):
    play(Owner(DynamicBatcher(1), None), instances, events)


@settings(deadline=None, max_examples=50)
@given(INSTANCES, EVENTS)
def test_a_batcher_of_one_does_what_the_default_scheduler_does(instances, events):
    play(Owner(DynamicBatcher(1), None), instances, events)
