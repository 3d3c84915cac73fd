"""How long a stub looks for its next batch, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stubserve_stub.runtime import busy_poll
from stubserve_stub.runtime.busy_poll import LEAST_NS, LONGEST_NS, BusyPoll
from stubserve_stub.wire import layout

# What one look at the clock takes
TICK_NS = 1_000


class Stub:
    """Words in which a parent announces, and a stub that looks at them."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(64 * 8)).cast("Q")
        self.words[layout.ALONE] = 1
        self.now_ns = TICK_NS
        # What happens when the clock says so
        self.at: tuple[int, Callable[[], None]] | None = None
        self.busy_poll = BusyPoll(self.words, self._clock)

    def _clock(self) -> int:
        self.now_ns += TICK_NS
        if self.at is not None and self.now_ns >= self.at[0]:
            self.at[1]()
            self.at = None
        return self.now_ns

    def announce(self) -> None:
        self.words[layout.ANNOUNCED] += 1

    def turn(self, pause_ns: int) -> int:
        """Waits for a batch that comes after such a pause, and takes it: for how long it has looked before it slept."""
        begin = self.now_ns
        self.at = (begin + pause_ns, self.announce)
        self.busy_poll.wait()
        looked = self.now_ns - begin
        while self.at is not None:
            self._clock()
        self.busy_poll.on_taken(1)
        return looked


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    monkeypatch.setattr(busy_poll, "usable_cores", lambda: 2.0)
    return Stub()


def about(duration_ns: int) -> object:
    return pytest.approx(duration_ns, abs=5 * TICK_NS)


def test_who_asks_at_an_even_pace_is_found_awake(stub: Stub) -> None:
    for _ in range(3):
        assert stub.turn(100_000) == about(100_000)
    assert stub.turn(400_000) == about(LEAST_NS)
    # Steps of an ensemble take turns, and their round may become longer
    assert stub.turn(400_000) == about(400_000)
    assert stub.turn(750_000) == about(750_000)


def test_it_never_looks_for_long(stub: Stub) -> None:
    stub.turn(900_000)
    assert stub.turn(5_000_000) == about(LONGEST_NS)


def test_for_who_takes_his_time_nobody_looks(stub: Stub) -> None:
    stub.turn(5_000_000)
    assert stub.turn(5_000_000) == about(0)
    # The pause is measured all the same
    assert stub.turn(200_000) == about(0)
    assert stub.turn(200_000) == about(200_000)


def test_looks_that_do_not_succeed_become_rare(stub: Stub) -> None:
    stub.turn(200_000)
    looked = 0
    for _ in range(100):
        looked += stub.turn(5_000_000) != about(0)
        assert stub.turn(200_000) == about(0)
    assert looked == 6


def test_one_look_that_succeeds_ends_that(stub: Stub) -> None:
    stub.turn(200_000)
    for _ in range(2):
        assert stub.turn(5_000_000) == about(400_000)
        stub.turn(200_000)
    # Two are left out.
    for _ in range(2):
        assert stub.turn(200_000) == about(0)
    for _ in range(3):
        assert stub.turn(200_000) == about(200_000)
    # One that does not succeed may be the client's.
    assert stub.turn(600_000) == about(400_000)
    assert stub.turn(600_000) == about(600_000)


def test_after_a_call_of_another_model_nobody_looks(stub: Stub) -> None:
    stub.turn(200_000)
    stub.busy_poll.on_call()
    assert stub.turn(200_000) == about(0)
    assert stub.turn(200_000) == about(200_000)


def test_under_load_nobody_looks_and_no_pause_is_measured(stub: Stub) -> None:
    stub.turn(200_000)
    stub.words[layout.ALONE] = 0
    assert stub.turn(5_000_000) == about(0)
    stub.words[layout.ALONE] = 1
    assert stub.turn(200_000) == about(200_000)


def test_what_is_there_already_is_taken_at_once(stub: Stub) -> None:
    stub.announce()
    before = stub.now_ns
    stub.busy_poll.wait()
    assert stub.now_ns == about(before)


def test_with_one_core_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "usable_cores", lambda: 1.5)
    assert Stub().turn(100_000) == 0
