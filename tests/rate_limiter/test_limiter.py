from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.rate_limiter.limiter import Demand, Limited, RateLimiter


class Party:
    """Instances of one limiter, by name; whoever is let in, or gets in at once, is in `running`, in that order."""

    def __init__(self, given: dict[tuple[str, int | None], int] | None = None) -> None:
        self.limiter = RateLimiter(given)
        self.instances: dict[str, Limited] = {}
        self.running: list[str] = []

    def add(self, name: str, *demands: Demand, priority: int = 1, device: int = 0) -> None:
        self.limiter.check([(demands, device)])
        self.instances[name] = limited = Limited(name, self._let_in, priority)
        self.limiter.add(limited, demands, device)

    def _let_in(self, limited: Limited) -> None:
        assert limited.holds
        self.running.append(str(limited.instance))

    def want(self, *names: str) -> None:
        for name in names:
            if self.limiter.acquire(self.instances[name]):
                self.running.append(name)
        self.limiter.start_waiting()

    def end(self, name: str, again: bool = False) -> None:
        """An instance has executed; with `again` it has something more to do at once."""
        self.running.remove(name)
        self.limiter.finish(self.instances[name])
        if again and self.limiter.acquire(self.instances[name]):
            self.running.append(name)
        self.limiter.start_waiting()

    def go_on(self, name: str) -> bool:
        """An instance is given more than it got its resources for, if it may be."""
        limited = self.instances[name]
        if not limited.ran:
            self.limiter.runs(limited)
        if not self.limiter.may_go_on(limited):
            return False
        self.limiter.runs(limited)
        return True

    def remove(self, name: str) -> None:
        if name in self.running:
            self.running.remove(name)
        self.limiter.remove(self.instances.pop(name))
        self.limiter.start_waiting()

    def shares(self, steps: int) -> Counter[str]:
        """How often each runs while all always have something to do."""
        self.want(*self.instances)
        done: Counter[str] = Counter()
        for _ in range(steps):
            name = self.running[0]
            done[name] += 1
            self.end(name, again=True)
        return done


R1: Demand = ("R", False, 1)


def test_by_default_there_is_as_much_as_the_greediest_asks_for() -> None:
    party = Party()
    party.add("small", ("R", False, 2))
    party.add("great", ("R", False, 4))
    party.add("other", ("R", False, 2))
    party.want("small", "other", "great")
    assert party.running == ["small", "other"]
    party.end("small")
    assert party.running == ["other"]
    party.end("other")
    assert party.running == ["great"]
    assert party.limiter.usage == {("R", 0): (4, 4)}
    party.end("great")
    party.remove("great")
    assert party.limiter.usage == {("R", 0): (0, 2)}


def test_devices_have_resources_of_their_own_and_share_those_that_are_global() -> None:
    party = Party()
    for device in (0, 1):
        party.add(f"own_{device}", R1, device=device)
        party.add(f"shared_{device}", ("G", True, 1), device=device)
    party.want("own_0", "own_1", "shared_0", "shared_1")
    assert party.running == ["own_0", "own_1", "shared_0"]
    party.end("shared_0")
    assert party.running == ["own_0", "own_1", "shared_1"]


def test_who_holds_what_an_instance_lacks() -> None:
    party = Party()
    for name in "abc":
        party.add(name, R1, ("G", True, 1))
    a, b = party.instances["a"], party.instances["b"]
    assert party.limiter.blockers(b) == ("", [])
    party.want("a", "b")
    assert party.limiter.blockers(b) == ("G", ["a"])
    assert party.limiter.blockers(a) == ("", [])
    party.end("a")
    assert party.limiter.blockers(a) == ("G", ["b"])


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [((1, 1), (60, 60)), ((1, 2), (80, 40)), ((2, 1), (40, 80)), ((3, 9), (90, 30)), ((0, 1), (60, 60))],
)
def test_priority_n_has_one_nth_of_the_executions(priorities: tuple[int, int], expected: tuple[int, int]) -> None:
    party = Party()
    for name, priority in zip("ab", priorities, strict=True):
        party.add(name, R1, priority=priority)
    done = party.shares(120)
    assert all(abs(done[name] - share) <= 1 for name, share in zip("ab", expected, strict=True))


def test_the_better_priority_has_its_executions_first() -> None:
    """At any moment it has twice as many as the other at least, but for the one that runs."""
    party = Party()
    party.add("b", R1, priority=2)
    party.add("a", R1, priority=1)
    party.want("a", "b")
    order = []
    for _ in range(12):
        order.append(party.running[0])
        party.end(order[-1], again=True)
    assert "".join(order) == "aab" * 4


def test_three_priorities_share_as_their_fractions() -> None:
    party = Party()
    for name, priority in (("a", 1), ("b", 2), ("c", 4)):
        party.add(name, R1, priority=priority)
    done = party.shares(700)
    assert all(abs(done[name] - share) <= 1 for name, share in (("a", 400), ("b", 200), ("c", 100)))


def test_who_comes_late_is_not_owed_the_past() -> None:
    party = Party()
    party.add("early", R1)
    assert party.shares(1000) == {"early": 1000}
    party.add("late", R1)
    done = party.shares(100)
    assert abs(done["late"] - 50) <= 1


def test_who_had_nothing_to_do_is_not_owed_the_past_either() -> None:
    party = Party()
    party.add("lazy", R1)
    party.add("busy", R1)
    party.want("lazy")
    party.end("lazy")
    party.want("busy")
    for _ in range(500):
        party.end("busy", again=True)
    party.want("lazy")
    done: Counter[str] = Counter()
    for _ in range(100):
        name = party.running[0]
        done[name] += 1
        party.end(name, again=True)
    assert abs(done["lazy"] - 50) <= 1


def test_nobody_waits_for_what_it_does_not_need() -> None:
    party = Party()
    party.add("holder", ("A", False, 1))
    party.add("blocked", ("A", False, 1))
    party.add("other", ("B", False, 1))
    party.add("free")
    party.want("holder", "blocked", "other", "free")
    assert party.running == ["holder", "other", "free"]


def test_a_great_one_is_not_starved_by_small_ones() -> None:
    party = Party({("R", None): 2})
    party.add("great", ("R", False, 2))
    for name in ("x", "y", "z"):
        party.add(name, R1)
    party.want("x", "y", "great", "z")
    assert party.running == ["x", "y"]
    party.end("x", again=True)
    assert party.running == ["y"]  # one is free, and is kept for who waits longest
    party.end("y", again=True)
    assert party.running == ["great"]
    party.end("great")
    assert set(party.running) <= {"x", "y", "z"}
    assert len(party.running) == 2


def test_who_needs_two_resources_has_both_or_none() -> None:
    party = Party()
    party.add("a", ("A", False, 1))
    party.add("b", ("B", False, 1))
    party.add("both", ("A", False, 1), ("B", False, 1))
    party.want("a", "b", "both")
    party.end("a")
    assert party.running == ["b"]
    party.end("b")
    assert party.running == ["both"]


def test_who_is_gone_gives_back_what_it_holds_and_loses_its_place() -> None:
    party = Party()
    for name in "abc":
        party.add(name, R1)
    party.want("a", "b", "c")
    party.remove("b")
    party.remove("a")
    assert party.running == ["c"]
    party.remove("c")
    assert party.limiter.usage == {}


def test_who_had_nothing_to_execute_has_had_nothing() -> None:
    party = Party()
    for name in "ab":
        party.add(name, R1)
    for _ in range(50):
        assert party.limiter.acquire(party.instances["a"])
        party.limiter.give_back(party.instances["a"])
    party.want("a")
    assert party.instances["a"].tag == 1


def test_what_an_instance_has_without_giving_back_is_counted() -> None:
    party = Party()
    for name in "ab":
        party.add(name, R1)
    party.want("a")
    assert [party.go_on("a") for _ in range(9)] == [True] * 9
    assert party.instances["a"].tag == 10
    party.want("b")
    assert not party.go_on("a")
    party.end("a", again=True)
    assert party.running == ["b"]
    party.end("b", again=True)
    # It is owed nothing of the nine, as it did not ask for them.
    assert party.running == ["a"]


def test_an_instance_does_not_go_on_with_more_than_there_is() -> None:
    party = Party()
    party.add("great", ("R", False, 2))
    party.add("a", R1)
    party.add("b", R1)
    party.want("a", "b")
    assert party.go_on("a")
    party.remove("great")
    assert not party.go_on("a")


def test_what_runs_goes_on_when_the_amount_falls() -> None:
    party = Party()
    party.add("great", ("R", False, 3))
    for name in "abc":
        party.add(name, R1)
    party.want("a", "b", "c")
    party.remove("great")
    assert party.limiter.usage == {("R", 0): (3, 1)}
    party.end("a", again=True)
    party.end("b")
    assert party.running == ["c"]
    party.end("c")
    assert party.running == ["a"]


@pytest.mark.parametrize(
    ("given", "demands", "text"),
    [
        (
            {("R", None): 10},
            [[("R", False, 40)]],
            'Resource count for "R" is limited to 10 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 40",
        ),
        (
            {("R", 3): 10},
            [[("R", False, 4)]],
            'Resource count for "R" is limited to 0 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 4",
        ),
        (
            {("Q", None): 10},
            [[("R", True, 1)]],
            'Resource count for "R" is limited to 0 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 1",
        ),
        (
            {},
            [[("R", True, 1), ("R", False, 1)]],
            'Resource "R" is present as both global and device-specific resource in the model configuration.',
        ),
        (
            {},
            [[("R", False, 4)], [("R", True, 1)]],
            'Resource "R" is present as both global and device-specific resource in the model configuration.',
        ),
    ],
)
def test_what_no_instance_can_ever_get_is_refused(
    given: dict[tuple[str, int | None], int], demands: Sequence[Sequence[Demand]], text: str
) -> None:
    party = Party(given)
    for index, demand in enumerate(demands[:-1]):
        party.add(str(index), *demand)
    with pytest.raises(ServeError) as refusal:
        party.add("last", *demands[-1])
    assert (refusal.value.code, refusal.value.message) == (Code.INVALID_ARG, text)


def test_the_device_of_a_shared_resource_is_not_looked_at_and_zero_is_nothing() -> None:
    party = Party({("G", 3): 2, ("R", 0): 1, ("R", None): 5})
    party.add("shared", ("G", True, 2))
    party.add("here", ("R", False, 1), ("Z", False, 0))
    party.add("there", ("R", False, 5), device=7)
    assert party.limiter.usage == {("G", None): (0, 2), ("R", 0): (0, 1), ("R", 7): (0, 5)}


# Random schedules, beside rules that are obviously right


class Rules:
    """Everything is looked through every time."""

    def __init__(self, totals: dict[str, int], instances: list[tuple[dict[str, int], int]]) -> None:
        self.totals = totals
        self.needs = [needs for needs, _ in instances]
        self.priorities = [priority for _, priority in instances]
        self.tags = [0] * len(instances)
        self.pool_tags = dict.fromkeys(totals, 0)
        self.waiting: list[tuple[int, int, int, int]] = []  # tag afterwards, priority, order, who
        self.running: set[int] = set()
        self.order = 0

    def _free(self, name: str) -> int:
        return self.totals[name] - sum(self.needs[one].get(name, 0) for one in self.running)

    def want(self, who: int) -> None:
        if who in self.running or any(who == one for _, _, _, one in self.waiting):
            return
        self.order += 1
        tag = max([self.tags[who], *(self.pool_tags[name] for name in self.needs[who])])
        priority = self.priorities[who]
        self.waiting.append((tag + priority, priority, self.order, who))

    def start_waiting(self) -> None:
        again = True
        while again:
            again = False
            kept: set[str] = set()
            for place in sorted(self.waiting):
                tag, priority, _, who = place
                needs = self.needs[who]
                if all(self._free(name) >= count and name not in kept for name, count in needs.items()):
                    self.waiting.remove(place)
                    self.running.add(who)
                    self.tags[who] = tag
                    self.pool_tags.update(dict.fromkeys(needs, tag - priority))
                    again = True
                    break
                kept |= set(needs)


NAMES = "ABC"
instances_ = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=3), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)


# An instance is let in, and no longer keeps A from the one behind it.
@example(
    instances=[({"A": 1}, 1), ({}, 1), ({"A": 1, "B": 1}, 1), ({"B": 3}, 1)],
    steps=[("want", 0), ("want", 3), ("end", 0), ("want", 2), ("want", 0), ("end", 0)],
)
# Who waits for B keeps it from an instance that A has become free for.
@example(
    instances=[({"B": 2}, 1), ({"B": 3}, 1), ({"A": 3}, 1), ({"A": 1, "B": 1}, 4)],
    steps=[("want", 0), ("want", 2), ("want", 1), ("want", 3), ("end", 1), ("end", 0)],
)
@settings(max_examples=1000, deadline=None)
@given(instances_, st.lists(st.tuples(st.sampled_from(["want", "end", "go on"]), st.integers(0, 5)), max_size=40))
def test_random_schedules_are_as_the_rules_have_them(
    instances: list[tuple[dict[str, int], int]], steps: list[tuple[str, int]]
) -> None:
    totals = dict.fromkeys(NAMES, 3)
    party, rules = Party({(name, None): 3 for name in NAMES}), Rules(totals, instances)
    for index, (needs, priority) in enumerate(instances):
        party.add(str(index), *((name, False, count) for name, count in needs.items()), priority=priority)
    for step, number in steps:
        who = number % len(instances)
        if step == "want":
            if str(who) not in party.running:
                party.want(str(who))
            rules.want(who)
        elif party.running:
            name = party.running[who % len(party.running)]
            if step == "go on":
                if not party.go_on(name):
                    assert any(set(rules.needs[one]) & set(rules.needs[int(name)]) for _, _, _, one in rules.waiting)
                    continue
                # As if it had given back what it holds, and asked for it again, in the same moment
                rules.running.remove(int(name))
                rules.want(int(name))
            else:
                party.end(name)
                rules.running.remove(int(name))
        rules.start_waiting()
        assert sorted(party.running) == sorted(map(str, rules.running))
        assert all(0 <= held <= total for held, total in party.limiter.usage.values())
