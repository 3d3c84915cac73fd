"""A short siege by each kind of hostile client: the server stands, its answers are right, and it takes everything back.

How quick it is meanwhile is `make siege`'s to say, on a machine of its own.
"""

from __future__ import annotations

import mmap
import os

import pytest

from tools.siege import __main__ as siege
from tools.siege.fort import MIB, TIMER, Memory, Watch, _more
from tools.siege.hostile import KINDS
from tools.siege.polite import Record

SECONDS = 2.0
# Several kinds at a time, for a test that is over soon; `make siege` has them one by one.
GROUPS = [
    pytest.param(["claims", "trickles"], id="claims"),
    # Alone: others would ask the stub for other things afterwards, which frees what it keeps.
    pytest.param(["never-reads"], id="never-reads"),
    pytest.param(["gzip-bombs", "long-ids", "json-bombs", "tiny-fields"], id="bombs"),
    pytest.param(["classes", "floats", "strings"], id="answers"),
    pytest.param(["connections", "wrong-port", "metadata", "floods"], id="connections"),
]


def test_every_kind_is_in_a_group() -> None:
    assert sorted(kind for group in GROUPS for kind in group.values[0]) == sorted(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", GROUPS)
def test_a_siege_leaves_nothing_behind(kinds: list[str]) -> None:
    one = siege.besiege("several", kinds, SECONDS)
    assert set(one.tallies) == set(kinds)
    assert all(one.tallies.values()), one.tallies
    assert one.records["small"].times_ms
    assert one.faults == [], siege.explained(one)


CALM = Memory(100.0, 90.0)


def calm() -> dict[str, Record]:
    return {name: Record([1.0] * 200, asked=200) for name in ("small", "grpc", "health", "large")}


def a_round(
    records: dict[str, Record],
    peak: Memory = CALM,
    whole_s: float | None = 0.1,
    left: tuple[str, ...] = (),
) -> siege.Round:
    rest = Memory(60.0, 40.0)
    return siege.Round("kind", 1, {}, records, rest, peak, rest, whole_s, list(left))


def test_a_calm_round_misses_nothing() -> None:
    assert a_round(calm()).missed == []


def test_every_target_can_be_missed() -> None:
    records = calm()
    records["small"].times_ms[:3] = [60.0] * 3
    records["health"].times_ms.clear()
    records["large"].longest_refused_s = 5.1
    records["grpc"].wrong = 2
    assert a_round(records, Memory(407.0, 191.0), None, ("7: pipe", "9: pipe")).missed == [
        "small p99 60 ms, not under 50",
        "health p99 inf ms, not under 50",
        "4 MiB refused for 5.1 s, of which 5 may be",
        "RSS 407 MiB, over 406",
        "the parent's own memory rose by 151 MiB, of which 150 may be",
        "2 wrong answers",
        "half of the arena is never given back",
        "descriptors are left open: 7: pipe, 9: pipe",
    ]


def test_a_queue_may_have_a_timer_and_nothing_else_is_left_open() -> None:
    before = {3: "socket", 4: TIMER}
    assert _more(before, {3: "socket", 4: TIMER, 5: TIMER}) == []
    assert _more(before, {4: TIMER, 5: "socket"}) == []
    assert _more(before, {3: "socket", 4: TIMER, 5: "pipe"}) == ["5: pipe"]
    many = dict.fromkeys(range(4, 12), TIMER)
    assert len(_more(before, {3: "socket", **many})) == 7


def test_the_pages_of_the_arena_are_not_the_parents_own() -> None:
    with mmap.mmap(-1, 64 * MIB, mmap.MAP_SHARED) as shared:
        watch = Watch(os.getpid())
        rest = watch.sample()
        shared.write(bytes(64 * MIB))
        after = watch.sample()
        assert after.resident - rest.resident > 60
        assert after.own - rest.own < 10


def test_who_is_never_answered_is_refused() -> None:
    records = calm()
    records["large"].failures = {"503": 200}
    assert a_round(records).missed == ["4 MiB refused for 0.0 s, of which 5 may be"]
