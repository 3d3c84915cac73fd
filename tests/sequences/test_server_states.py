"""States that the server keeps: they go with each request, come back with its answer, and outlive instances.

The backend of these tests counts: the state is how many requests of its sequence have succeeded.
"""

from __future__ import annotations

import itertools
import random

import pytest

from stubserve.errors import ServeError, internal, unavailable
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Work
from stubserve.memory.heap_account import HeapAccount
from stubserve.schedulers.factory import create_scheduler
from stubserve.sequences.batcher import SequenceBatcher
from tests.schedulers.requests import MS

from .playing import config_of, step

STATE = 'state { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: [ 1 ] }'
STRATEGIES = ["direct {}", "oldest { max_candidate_sequences: 3 }"]
INT32 = 8


class Counting:
    """Instances that count, and their scheduler. `seen` has (id, state) of each executed request; None: no state."""

    def __init__(self, strategy: str, *instances: str, idle_ms: int = 1000) -> None:
        config = config_of(f"{strategy} {STATE}", idle_ms=idle_ms)
        config.backend = "tracking"
        scheduler = create_scheduler(config)
        assert isinstance(scheduler, SequenceBatcher)
        self.scheduler = scheduler
        self.ms = 0
        self.sent: list[Request] = []
        self.seen: list[tuple[str, int | None]] = []
        self.failed: list[str] = []
        self.responses: list[Response] = []
        self.running: dict[str, Work] = {}
        self.up: set[str] = set()
        for instance in instances:
            self.join(instance)

    def join(self, instance: str) -> None:
        self.up.add(instance)
        self.scheduler.instance_idle(instance)

    def send(self, id: str, sequence: int, flag: str = "", **more: int) -> Request:
        request = step(id, sequence, flag, **more)
        self.scheduler.enqueue(request, self.ms * MS)
        self.sent.append(request)
        return request

    def poll(self) -> None:
        decision = self.scheduler.poll(self.ms * MS)
        assert not decision.ended_sequences
        self.failed += [request.id for request, _ in decision.answer]
        for instance, work in decision.run:
            assert instance not in self.running
            assert work.sequences is None
            self.running[str(instance)] = work

    def finish(self, instance: str, fails: bool = False) -> None:
        work = self.running.pop(instance)
        for index, request in enumerate(work.slots):
            if request is None:
                continue
            state = given(work, index)
            self.seen.append((request.id, state))
            if fails:
                response = Response(error=internal("no"))
            else:
                new = ((state or 0) + 1).to_bytes(4, "little")
                response = Response([Tensor("OUT", INT32, [1], bytes(4)), Tensor("T", INT32, [1], new)])
            self.responses.append(response)
            self.scheduler.response_complete(request, response)
            assert [tensor.name for tensor in response.outputs] == ([] if response.error else ["OUT"])
        self.scheduler.work_done(instance, work)
        self.scheduler.instance_idle(instance)

    def die(self, instance: str) -> list[Request]:
        """Returns the requests that the owner answers, as their instance cannot."""
        self.up.discard(instance)
        self.scheduler.instance_gone(instance)
        work = self.running.pop(instance, None)
        return [] if work is None else list(work.requests)

    def run(self) -> None:
        """Until nothing is left to be done."""
        self.poll()
        while self.running:
            for instance in list(self.running):
                self.finish(instance)
            self.poll()

    @property
    def kept(self) -> int:
        assert self.scheduler.states is not None
        return len(self.scheduler.states)


def given(work: Work, index: int) -> int | None:
    extras = () if work.extra_inputs is None else work.extra_inputs[index]
    for tensor in extras:
        if tensor.name == "S":
            return int.from_bytes(tensor.buffer, "little")
    return None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_comes_with_the_next_request(strategy: str) -> None:
    counting = Counting(strategy, "i")
    for id, sequence, flag in (("a1", 1, "start"), ("b1", 2, "start"), ("a2", 1, ""), ("a3", 1, ""), ("b2", 2, "end")):
        counting.send(id, sequence, flag)
        counting.run()
    assert counting.seen == [("a1", None), ("b1", None), ("a2", 1), ("a3", 2), ("b2", 1)]
    assert counting.kept == 1
    counting.send("a4", 1, "start")
    counting.send("a5", 1, "end")
    counting.run()
    assert counting.seen[-2:] == [("a4", None), ("a5", 1)]
    assert counting.kept == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_that_fails_leaves_the_state_as_it_was(strategy: str) -> None:
    counting = Counting(strategy, "i")
    for id, flag in (("a1", "start"), ("a2", ""), ("a3", ""), ("a4", "end")):
        counting.send(id, 1, flag)
        counting.poll()
        counting.finish("i", fails=id in ("a1", "a3", "a4"))
    assert counting.seen == [("a1", None), ("a2", None), ("a3", 1), ("a4", 1)]
    assert counting.kept == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_outlive_their_instance(strategy: str) -> None:
    """What executes is for the owner to answer; what is queued, and the sequence, go on elsewhere."""
    counting = Counting(strategy, "i", "j")
    for sequence in (1, 2, 3):
        counting.send(f"{sequence}a", sequence, "start")
    counting.run()
    counting.seen.clear()
    executing, *_ = (counting.send(f"1{part}", 1) for part in "bcd")
    counting.poll()
    ((instance, _),) = counting.running.items()
    assert counting.die(instance) == [executing]
    counting.run()
    for sequence in (2, 3):
        counting.send(f"{sequence}b", sequence, "end")
        counting.run()
    assert counting.seen == [("1c", 1), ("1d", 2), ("2b", 1), ("3b", 1)]
    assert not counting.failed
    assert counting.kept == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_wait_for_their_only_instance(strategy: str) -> None:
    """A drain answers their requests alone. Once they have a slot, idle sequences end as always."""
    counting = Counting(strategy, "i")
    for sequence in (1, 2):
        counting.send(f"{sequence}a", sequence, "start")
    counting.run()
    counting.die("i")
    counting.ms = 5000
    counting.send("1b", 1)
    counting.poll()
    assert [request.id for request in counting.scheduler.drain()] == ["1b"]
    assert counting.scheduler.sequences == 2
    counting.join("i")
    counting.send("1c", 1)
    counting.run()
    assert counting.seen[-1] == ("1c", 1)
    counting.ms = 7000
    counting.run()
    assert (counting.scheduler.sequences, counting.kept) == (0, 0)
    with pytest.raises(ServeError, match="must specify the START flag"):
        counting.send("2b", 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_that_expires_or_is_cancelled_meanwhile(strategy: str) -> None:
    counting = Counting(strategy, "i")
    for sequence in (1, 2):
        counting.send(f"{sequence}a", sequence, "start")
    counting.run()
    counting.die("i")
    counting.send("1b", 1, timeout_ms=10)
    cancelled = counting.send("2b", 2)
    counting.scheduler.cancel(cancelled)
    counting.ms = 20
    counting.poll()
    assert sorted(counting.failed) == ["1b", "2b"]
    assert (counting.scheduler.sequences, counting.kept) == (1, 1)
    counting.join("j")
    counting.send("1c", 1, "end")
    counting.run()
    assert counting.seen[-1] == ("1c", 1)
    assert counting.kept == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_leaves_a_closed_instance_with_its_next_request(strategy: str) -> None:
    counting = Counting(strategy, "i", "j")
    vacant: list[object] = []
    counting.scheduler.when_vacant = vacant.append
    counting.send("1a", 1, "start")
    counting.poll()
    ((closed, _),) = counting.running.items()
    assert counting.scheduler.close_instance(closed)
    counting.send("1b", 1)  # stays, because 1a executes
    counting.run()
    assert vacant == []
    counting.send("1c", 1)
    counting.poll()
    assert closed not in counting.running
    counting.run()
    assert [state for _, state in counting.seen] == [None, 1, 2]
    assert vacant == [closed]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_idle_sequences_keep_no_slot_from_others(strategy: str) -> None:
    """Each goes on with its next request, and with its own state, however many there are."""
    counting = Counting(strategy, "i")
    for sequence in range(1, 51):
        counting.send(f"{sequence}a", sequence, "start")
        counting.run()
    assert len(counting.seen) == 50
    for part in "bc":
        for sequence in range(1, 51):
            counting.send(f"{sequence}{part}", sequence)
        counting.run()
    assert sorted(counting.seen) == sorted(
        (f"{sequence}{part}", state)
        for sequence in range(1, 51)
        for part, state in zip("abc", (None, 1, 2), strict=True)
    )
    assert not counting.failed
    assert (counting.scheduler.sequences, counting.kept) == (50, 50)
    assert all(counting.scheduler.holds(sequence) for sequence in range(1, 51))
    for sequence in range(1, 51):
        counting.send(f"{sequence}d", sequence, "end")
    counting.run()
    assert (counting.scheduler.sequences, counting.kept) == (0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_under_way_keeps_its_slot(strategy: str) -> None:
    counting = Counting(strategy, "i")
    for sequence in range(1, 4):
        counting.send(f"{sequence}a", sequence, "start")
    counting.poll()
    counting.send("4a", 4, "start")
    counting.poll()
    assert counting.scheduler.queued
    counting.run()
    assert [id for id, _ in counting.seen][-1] == "4a"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_without_a_slot_end_when_they_are_idle_for_too_long(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when there are too many of them, those first that are idle for longest. The scheduler says when to look."""
    counting = Counting(strategy, "i")
    slots = counting.scheduler._slots.each
    for sequence in range(1, 11):
        counting.send(f"{sequence}a", sequence, "start")
        counting.run()
        counting.ms += 10
    counting.send("2b", 2)
    counting.run()
    counting.ms = 1005
    wake_at_ns = counting.scheduler.poll(counting.ms * MS).wake_at_ns
    assert wake_at_ns is not None
    assert wake_at_ns <= 1020 * MS
    assert not counting.scheduler.holds(1)
    assert counting.scheduler.holds(2)
    assert counting.kept == 9
    counting.ms = 5000
    counting.run()
    assert (counting.scheduler.sequences, counting.kept) == (0, 0)
    monkeypatch.setattr("stubserve.sequences.backlog._MOST_RESTING", 5)
    for sequence in range(1, 21):
        counting.send(f"{sequence}a", sequence, "start")
        counting.run()
        counting.ms += 1
    assert [sequence for sequence in range(1, 21) if counting.scheduler.holds(sequence)] == list(range(16 - slots, 21))
    assert counting.kept == 5 + slots


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_scheduler_goes_on(strategy: str) -> None:
    """A sequence that has a request under way stays for now."""
    old, new = Counting(strategy, "i"), Counting(strategy, "j")
    old.send("1a", 1, "start")
    assert old.scheduler.part_with(1) is None
    old.poll()
    assert old.scheduler.part_with(1) is None
    old.run()
    states = old.scheduler.part_with(1)
    assert states is not None
    assert new.scheduler.states is not None
    new.scheduler.states.adopt(1, states)
    assert old.scheduler.part_with(1) is None
    new.send("1b", 1, "end")
    new.run()
    old.run()
    assert new.seen == [("1b", 1)]
    assert (old.kept, new.kept, old.scheduler.sequences, new.scheduler.sequences) == (0, 0, 0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_states_count_as_memory(strategy: str) -> None:
    """A request whose new state finds no room fails, and leaves the old one."""
    counting = Counting(strategy, "i")
    states = counting.scheduler.states
    assert states is not None
    ledger = Ledger(most=8)
    states.heap = HeapAccount(ledger)
    for sequence in (1, 2, 3):
        counting.send(f"{sequence}a", sequence, "start")
        counting.run()
    assert ledger.taken == 8
    assert [response.error is None for response in counting.responses] == [True, True, False]
    assert counting.responses[-1].outputs == []
    counting.send("1b", 1, "start")
    counting.send("2b", 2, "end")
    counting.run()
    assert ledger.taken == 4
    assert counting.scheduler.part_with(1)
    assert ledger.taken == 4
    counting.send("3b", 3)
    counting.run()
    assert ledger.taken == 8
    states.close()
    assert ledger.taken == 4


class Ledger:
    """Has room for `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    def commit(self, nbytes: int) -> None:
        if self.taken + nbytes > self._most:
            raise unavailable("no room")
        self.taken += nbytes

    def uncommit(self, nbytes: int) -> None:
        self.taken -= nbytes


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens(seed: int) -> None:
    """Instances die and come, requests fail and sequences end: no state is lost, or given to another sequence."""
    dice = random.Random(seed)
    names = map("i{}".format, itertools.count(2))
    counting = Counting(STRATEGIES[seed % 2], "i0", "i1", idle_ms=10**9)
    # The sequences that began with each START, as clients use their ids again: their successes, by such a number
    began: dict[int, int] = {}
    count: dict[int, int] = {}
    waiting: dict[str, tuple[int, Request]] = {}

    def send(sequence: int, flag: str) -> None:
        if flag in ("start", "both"):
            began[sequence] = len(count)
            count[len(count)] = 0
        id = f"r{len(counting.sent)}"
        waiting[id] = (began[sequence], counting.send(id, sequence, flag))

    def settle(fails: bool = False) -> None:
        assert not counting.failed
        for id, state in counting.seen:
            which, _ = waiting.pop(id)
            assert state == (count[which] or None), id
            count[which] += not fails
        counting.seen.clear()

    for _ in range(400):
        choice = dice.random()
        if choice < 0.45:
            sequence = dice.randrange(1, 8)
            flags = ("", "end") if counting.scheduler.holds(sequence) else ("start", "both")
            send(sequence, flags[dice.random() < 0.1])
        elif choice < 0.8 and counting.running:
            fails = dice.random() < 0.2
            counting.finish(dice.choice(sorted(counting.running)), fails=fails)
            settle(fails)
        elif choice < 0.86 and counting.up:
            for request in counting.die(dice.choice(sorted(counting.up))):
                del waiting[request.id]
        elif choice < 0.92 and len(counting.up) < 3:
            counting.join(next(names))
        counting.poll()
    counting.join("last")
    counting.run()
    for sequence in range(1, 8):
        if counting.scheduler.holds(sequence):
            send(sequence, "end")
    counting.run()
    settle()
    assert not waiting
    assert (counting.kept, counting.scheduler.sequences) == (0, 0)
