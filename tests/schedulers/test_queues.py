"""The policy queue."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.inference.request import Request
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.policy_queue import PolicyQueue, PriorityLevels, QueuePolicy

from .requests import ids, request

US = 1000
REJECT = QueuePolicy(default_timeout_us=100)
DELAY = QueuePolicy(delay_expired=True, default_timeout_us=100)


def queue_of(*policies: QueuePolicy, default: int = 1) -> PolicyQueue:
    """One level without a number for one policy, else a level for each."""
    if len(policies) == 1:
        return PolicyQueue(PriorityLevels(policy=policies[0]))
    return PolicyQueue(PriorityLevels(len(policies), default, policies=dict(enumerate(policies, 1))))


def push(queue: PolicyQueue, now_us: int, *requests) -> None:
    for r in requests:
        r.queue_start_ns = now_us * US
        queue.push(r)


def expire(queue: PolicyQueue, now_us: int) -> list[str]:
    return [r.id for r, _ in queue.expire(now_us * US)]


# With a policy, and without


@pytest.mark.parametrize("make", [lambda: queue_of(QueuePolicy()), lambda: queue_of(REJECT)], ids=["plain", "policy"])
def test_first_in_first_out_and_removal_anywhere(make):
    queue = make()
    requests = [request(i) for i in range(6)]
    for r in requests:
        queue.push(r)
    assert queue.remove(requests[0])
    assert queue.remove(requests[3])
    assert not queue.remove(requests[3])
    assert not queue.remove(request("never seen"))
    assert ids(list(queue)) == ["1", "2", "4", "5"]
    assert len(queue) == 4
    assert ids(queue.take(3)) == ["1", "2", "4"]
    assert not queue.remove(requests[1])
    assert ids(queue.take(1)) == ["5"]
    assert len(queue) == 0
    assert not queue.remove(requests[5])


@pytest.mark.parametrize("make", [lambda: queue_of(QueuePolicy()), lambda: queue_of(REJECT)], ids=["plain", "policy"])
def test_a_request_may_come_back_after_it_left(make):
    queue = make()
    r = request(1)
    queue.push(r)
    queue.take(1)
    queue.push(r)
    assert ids(list(queue)) == ["1"]


# Priorities


@pytest.mark.parametrize(
    ("count", "default", "priority", "level"),
    [(0, 0, 0, 0), (0, 0, 7, 0), (3, 2, 0, 2), (3, 2, 1, 1), (3, 2, 3, 3), (3, 2, 4, 2), (3, 2, 2**64 - 1, 2)],
)
def test_level_of_a_priority(count, default, priority, level):
    assert PriorityLevels(count, default).level_of(priority) == level


def test_levels_are_served_in_order_and_each_in_order_of_arrival():
    queue = queue_of(*[QueuePolicy()] * 3, default=2)
    # The ids are the order of service that Triton 2.51 showed for these priorities (see test_like_triton).
    served = [4, 6, 9, 2, 3, 5, 8, 0, 1, 7]
    for i, priority in enumerate([3, 3, 0, 2, 1, 9, 1, 3, 2, 1]):
        queue.push(request(i, priority=priority))
    assert ids(list(queue)) == [str(i) for i in served]
    assert ids(queue.take(10)) == [str(i) for i in served]


def test_only_levels_in_use_take_memory():
    queue = PolicyQueue(PriorityLevels(2**64 - 1, 5))
    for priority in (2**64 - 1, 3, 0):
        queue.push(request(priority, priority=priority))
    assert ids(list(queue)) == ["3", "0", str(2**64 - 1)]


@pytest.mark.parametrize(
    ("priorities", "plain"),
    [
        (PriorityLevels(), True),
        (PriorityLevels(1, 1), True),
        (PriorityLevels(2, 1), False),
        (PriorityLevels(policy=QueuePolicy(max_queue_size=1)), False),
        (PriorityLevels(policy=QueuePolicy(default_timeout_us=1)), False),
        (PriorityLevels(1, 1, policies={1: QueuePolicy(max_queue_size=1)}), False),
        (PriorityLevels(1, 1, policies={1: QueuePolicy()}), True),
    ],
)
def test_plain_levels_need_no_policy_queue(priorities, plain):
    assert priorities.plain is plain


# Limits


def test_a_full_level_refuses_and_the_others_do_not():
    queue = queue_of(QueuePolicy(max_queue_size=2), QueuePolicy(max_queue_size=1))
    push(queue, 0, request("a", priority=1), request("b", priority=2), request("c", priority=1))
    for priority in (1, 2):
        with pytest.raises(ServeError) as refused:
            queue.push(request("late", priority=priority))
        assert refused.value.code is Code.UNAVAILABLE
        assert refused.value.message == "[request id: late] Exceeds maximum queue size"
    assert ids(list(queue)) == ["a", "c", "b"]
    queue.take(1)
    queue.push(request("d", priority=1))
    assert ids(list(queue)) == ["c", "d", "b"]


def test_a_refused_request_leaves_no_trace():
    queue = queue_of(QueuePolicy(default_timeout_us=100, max_queue_size=1))
    push(queue, 50, request("in"))
    with pytest.raises(ServeError, match="<id_unknown>"):
        push(queue, 0, request(""))
    assert queue.next_deadline_ns() == 150 * US
    assert len(queue) == 1


def test_delayed_requests_count_as_queued():
    queue = queue_of(QueuePolicy(delay_expired=True, default_timeout_us=100, max_queue_size=2))
    push(queue, 0, request(1), request(2))
    assert expire(queue, 100) == []
    with pytest.raises(ServeError):
        push(queue, 100, request(3))


# Timeouts


@pytest.mark.parametrize(
    ("default_us", "override", "asked_us", "deadline_us"),
    [
        (0, False, 0, None),
        (0, False, 50, None),
        (0, True, 50, None),  # as Triton 2.51: without a default there is nothing to shorten
        (100, False, 0, 100),
        (100, False, 50, 100),
        (100, False, 500, 100),
        (100, True, 0, 100),
        (100, True, 50, 50),
        (100, True, 100, 100),
        (100, True, 500, 100),
    ],
)
def test_which_timeout_applies(default_us, override, asked_us, deadline_us):
    queue = queue_of(QueuePolicy(default_timeout_us=default_us, allow_timeout_override=override))
    push(queue, 1000, request(1, timeout_us=asked_us))
    if deadline_us is None:
        assert queue.next_deadline_ns() is None
        assert expire(queue, 10**12) == []
    else:
        assert queue.next_deadline_ns() == (1000 + deadline_us) * US
        assert queue.expire((1000 + deadline_us) * US - 1) == []
        assert expire(queue, 1000 + deadline_us) == ["1"]


def test_reject_answers_in_order_of_deadline():
    queue = queue_of(QueuePolicy(default_timeout_us=100, allow_timeout_override=True))
    push(queue, 0, request("a"), request("b", timeout_us=50), request("c", timeout_us=70), request("d"))
    rejected = queue.expire(80 * US)
    assert [(r.id, e.code, e.message) for r, e in rejected] == [
        ("b", Code.UNAVAILABLE, "Request timeout expired"),
        ("c", Code.UNAVAILABLE, "Request timeout expired"),
    ]
    assert ids(list(queue)) == ["a", "d"]
    assert len(queue) == 2


def test_delay_puts_what_expired_behind_its_level():
    queue = queue_of(DELAY, DELAY)
    push(queue, 0, request("old low", priority=2), request("old high", priority=1))
    push(queue, 50, request("new high", priority=1), request("new low", priority=2))
    assert queue.expire(100 * US) == []
    assert ids(list(queue)) == ["new high", "old high", "new low", "old low"]
    assert queue.expire(150 * US) == []
    assert ids(list(queue)) == ["old high", "new high", "old low", "new low"]
    assert queue.next_deadline_ns() is None
    push(queue, 160, request("newest high", priority=1))
    assert ids(queue.take(5)) == ["newest high", "old high", "new high", "old low", "new low"]
    assert len(queue) == 0


def test_a_delayed_request_can_be_removed():
    queue = queue_of(DELAY)
    first, second = request(1), request(2)
    push(queue, 0, first, second)
    queue.expire(100 * US)
    assert queue.remove(first)
    assert ids(list(queue)) == ["2"]
    assert len(queue) == 1


def test_what_left_does_not_expire():
    queue = queue_of(REJECT)
    taken, removed, stays = request("taken"), request("removed"), request("stays")
    push(queue, 0, taken, removed)
    push(queue, 30, stays)
    queue.take(1)
    queue.remove(removed)
    assert queue.next_deadline_ns() == 130 * US
    assert expire(queue, 1000) == ["stays"]
    assert queue.next_deadline_ns() is None


def test_a_request_that_comes_back_expires_by_its_new_deadline():
    queue = queue_of(REJECT)
    r = request("back")
    push(queue, 0, r)
    queue.take(1)
    push(queue, 60, r)
    assert expire(queue, 100) == []
    assert expire(queue, 160) == ["back"]
    assert len(queue) == 0


@pytest.mark.parametrize("leave", ["take", "remove"])
def test_a_long_timeout_does_not_keep_served_requests_alive(leave):
    class Payload:
        pass

    queue = queue_of(QueuePolicy(default_timeout_us=3_600_000_000))
    push(queue, 0, request("stays, so its deadline is the first"))
    alive: weakref.WeakSet[Payload] = weakref.WeakSet()
    for i in range(1000):
        payload = Payload()
        alive.add(payload)
        r = request(i, parameters={"payload": payload})
        push(queue, 1, r)
        if leave == "remove":
            queue.remove(r)
        else:
            first = queue.take(2)[0]
            push(queue, 0, first)
        del r, payload
    gc.collect()
    # A bound, not a figure: without it all 1000 stay for an hour.
    assert len(alive) <= 100


def of_client(client: object, id: object, priority: int = 0) -> Request:
    return request(id, priority=priority, client=client)


def test_who_has_most_in_a_full_queue_gives_his_newest():
    queue = queue_of(QueuePolicy(max_queue_size=4))
    push(queue, 0, *(of_client("flood", n) for n in range(4)))
    push(queue, 1, of_client("quiet", "a"))
    assert ids(list(queue)) == ["0", "1", "2", "a"]
    push(queue, 2, of_client("quiet", "b"))
    assert ids(list(queue)) == ["0", "1", "a", "b"]
    for client, id in (("quiet", "c"), ("flood", 4)):
        with pytest.raises(ServeError, match=r"^\[request id: \w] Exceeds maximum queue size$"):
            push(queue, 3, of_client(client, id))
    gone = queue.expire(10 * US)
    assert [(r.id, e.code, e.retry_after_s) for r, e in gone] == [
        ("3", Code.UNAVAILABLE, 1),
        ("2", Code.UNAVAILABLE, 1),
    ]
    assert gone[0][1].message.startswith("[request id: 3] Exceeds maximum queue size: the place went to a client")
    # A third one: the part of each is less now.
    push(queue, 4, of_client("third", "x"))
    assert sorted(ids(list(queue))) in (["0", "a", "b", "x"], ["0", "1", "a", "x"])


def test_who_has_no_client_neither_takes_nor_gives():
    queue = queue_of(QueuePolicy(max_queue_size=3))
    push(queue, 0, request(1), request(2), of_client("a", 3))
    for newcomer in (request("n"), of_client("a", "n"), of_client("b", "n")):
        with pytest.raises(ServeError):
            push(queue, 1, newcomer)
    assert expire(queue, 2) == []


def test_levels_are_full_each_for_itself():
    queue = queue_of(QueuePolicy(max_queue_size=2), QueuePolicy(max_queue_size=2))
    push(queue, 0, *(of_client("flood", n, 2) for n in range(2)))
    push(queue, 0, *(of_client("flood", n, 1) for n in "ab"))
    push(queue, 0, of_client("quiet", "q", 2))
    assert ids(list(queue)) == ["a", "b", "0", "q"]


def test_shares_are_forgotten_when_the_queue_is_half_empty():
    queue = queue_of(QueuePolicy(max_queue_size=4))
    push(queue, 0, *(of_client("a", n) for n in range(4)))
    push(queue, 0, of_client("b", "b"))
    (level,) = queue._order
    assert level.shares is not None
    assert ids(queue.take(1)) == ["0"]
    assert level.shares is not None
    queue.take(1)
    assert level.shares is None
    assert ids(list(queue)) == ["2", "b"]


def test_what_gave_way_is_drained_with_the_rest():
    scheduler = DynamicBatcher(1, priorities=PriorityLevels().bounded(2))
    for r in (of_client("a", 1), of_client("a", 2), of_client("b", 3)):
        scheduler.enqueue(r, 0)
    assert sorted(ids(scheduler.drain())) == ["1", "2", "3"]
    assert scheduler.poll(1).answer == []


class _Literal:
    """The rule in the slow and literal way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting: list[Request] = []
        self.gone: list[Request] = []

    def count(self, client: object) -> int:
        return sum(r.client == client for r in self.waiting)

    def push(self, newcomer: Request) -> bool:
        if len(self.waiting) >= self.size:
            clients = [r.client for r in self.waiting if r.client is not None]
            most = max(map(self.count, clients), default=0)
            if newcomer.client is None or self.count(newcomer.client) + 1 >= most:
                return False
        self.waiting.append(newcomer)
        return True


@given(
    size=st.integers(1, 6),
    events=st.lists(st.one_of(st.sampled_from([None, "a", "b", "c", "d"]), st.integers(0, 3)), max_size=60),
)
def test_random_clients_are_treated_by_the_rule(size, events):
    queue = queue_of(QueuePolicy(max_queue_size=size))
    literal = _Literal(size)
    for number, event in enumerate(events):
        if isinstance(event, int):
            taken = queue.take(event)
            assert taken == literal.waiting[:event]
            del literal.waiting[:event]
            continue
        newcomer = of_client(event, number)
        newcomer.queue_start_ns = 0
        if not literal.push(newcomer):
            with pytest.raises(ServeError):
                queue.push(newcomer)
            continue
        queue.push(newcomer)
        for displaced, _ in queue.expire(1):
            # One of those with most, and the newest of its client
            client = displaced.client
            assert client is not None
            others = [r for r in literal.waiting if r is not newcomer]
            counts = [sum(r.client == one for r in others) for one in {r.client for r in others} - {None}]
            assert sum(r.client == client for r in others) == max(counts)
            assert [r for r in others if r.client == client][-1] is displaced
            literal.waiting.remove(displaced)
        assert list(queue) == literal.waiting
        assert len(queue) <= size
