"""Seconds of what `make chaos` does for minutes: a stop and a kill under load, and all kinds of trouble before them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.real_server import PATIENCE_S, eventually
from tools.bench.processes import MIB, rss_anon
from tools.chaos import __main__ as chaos
from tools.chaos import remains
from tools.chaos.__main__ import Life
from tools.chaos.everything.scene import Everything
from tools.chaos.everything.surroundings import Folder, Later
from tools.chaos.everything.tokens import Tokens
from tools.chaos.memory import Kept
from tools.chaos.scenes import Pipelines, Scene
from tools.chaos.strangers.scene import Strangers
from tools.chaos.world import Client, Refused, Releases, World, Wrong

LIFE_S = 3.0


@pytest.mark.slow
@pytest.mark.parametrize("scene", [Scene, Pipelines, Everything, Strangers])
def test_nothing_is_lost_and_nothing_stays(scene: type[Scene]) -> None:
    outcome = chaos.run(LIFE_S, LIFE_S, False, scene)
    assert outcome.faults == [], chaos.table(outcome)
    assert [life.end for life in outcome.lives] == ["SIGTERM", "SIGKILL"]
    for kind, _ in scene.crowd:
        assert sum(client.tally["right"] for client in outcome.clients if isinstance(client, kind)) > 0, kind
    assert outcome.total("hung") == outcome.total("wrong") == outcome.total("lost") == 0


class Scripted(Client):
    """Its requests end as they are told to."""

    def __init__(self, world: World, *ends: Exception | None) -> None:
        super().__init__(world, 0)
        self.ends = list(ends)

    def ask(self) -> None:
        end = self.ends.pop(0)
        if not self.ends:
            self.world.over = True
        if end is not None:
            raise end


@pytest.mark.parametrize(
    ("end", "tally", "faults"),
    [
        (None, "right", 0),
        (Refused("503 no room"), "refused", 0),
        (Wrong("2 is not 3"), "wrong", 1),
        (TimeoutError(), "hung", 1),
        (ConnectionResetError(), "lost", 1),
        (KeyError("outputs"), "wrong", 1),
    ],
)
def test_every_end_of_a_request_is_counted(end: Exception | None, tally: str, faults: int) -> None:
    world = World(generation=2)
    world.go.set()
    client = Scripted(world, end)
    client.run()
    assert client.tally == Counter([tally])
    assert len(world.faults) == faults


@pytest.mark.parametrize("end", [TimeoutError(), ConnectionResetError()])
def test_what_takes_long_while_nothing_runs_is_no_fault(end: Exception) -> None:
    """The machine was suspended, or all of its processes were stopped."""
    world = World(generation=2)
    world.go.set()
    client = Scripted(world, end)
    world.stood_still = float("inf")
    client.run()
    assert client.tally == Counter(["stood still"])
    assert world.faults == []


class Stuck(Client):
    """Its request never ends."""

    def ask(self) -> None:
        threading.Event().wait()


class StuckInLibrary(Stuck):
    keeps_deadlines = True


class NoTroubles:
    def calm_down(self) -> None: ...


@pytest.mark.parametrize(("kind", "faults", "clients"), [(Stuck, 1, 1), (StuckInLibrary, 0, 2)])
def test_a_request_that_outlives_its_deadline_is_its_librarys(
    kind: type[Client], faults: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "ANSWER_WITHIN_S", -5.0)
    world = World(generation=2)
    world.go.set()
    asking = [kind(world, 0)]
    asking[0].start()
    eventually(lambda: asking[0].whereabouts().startswith("threading.py"))
    chaos.rest(world, asking, NoTroubles())  # type: ignore[arg-type]
    assert len(world.faults) == faults
    assert len(asking) == clients
    assert [client.forsaken for client in asking] == [True, False][-clients:]


def test_a_connection_may_be_lost_with_its_server() -> None:
    world = World(generation=3)
    world.go.set()
    client = Scripted(world, ConnectionResetError())
    client.run()
    assert client.tally == Counter(["lost with the server"])
    assert world.faults == []


def test_a_connection_may_not_be_lost_while_its_server_lives() -> None:
    world = World(generation=2)
    world.go.set()
    client = Scripted(world, None, ConnectionResetError())
    client.run()
    assert client.tally == Counter(["right", "lost"])
    assert len(world.faults) == 1


def test_what_is_wrong_again_and_again_is_said_once() -> None:
    outcome = chaos.Outcome(
        [], Counter(), [], ["10:00:01 Late 1: wrong: 3 is not 4", "10:00:02 Late 2: wrong: 5 is not 6"]
    )
    assert chaos.table(outcome).endswith("\nfault: 10:00:01 Late 1: wrong: 3 is not 4 (2 times)")


def test_a_model_that_is_taken_away_is_not_half_there(tmp_path: Path) -> None:
    """Whatever else happens to its files meanwhile."""
    (tmp_path / "home" / "works").mkdir(parents=True)
    (tmp_path / "home" / "works" / "config.pbtxt").write_text("as it was")
    place = Folder(tmp_path / "home", tmp_path / "models")
    config = tmp_path / "models" / "works" / "config.pbtxt"
    place.put("works", "config.pbtxt", "changed")
    assert config.read_text() == "changed"
    place.take_away("works")
    place.put("works", "config.pbtxt", "changed")
    place.take_away("works")
    assert not config.parent.exists()
    place.restore("works")
    assert config.read_text() == "as it was"


def test_tokens_are_good_before_they_are_shown_and_after_they_are_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    tokens = Tokens(tmp_path / "tokens", world)
    first = world.token
    seen = []
    monkeypatch.setattr(
        "time.sleep", lambda seconds: seen.append((world.token, tokens.path.read_text().split("\n")[:2]))
    )
    tokens.change()
    assert seen == [(first, [first, world.token]), (world.token, [first, world.token])]
    assert first not in tokens.path.read_text()
    assert world.withdrawn == first


def test_what_is_left_behind_is_found_and_ended() -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", "import os, sys; os.memfd_create('m'); print(flush=True); sys.stdin.read()"]
    environment = {**os.environ, remains.MARK: mark}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = remains.after(mark, 0.0)
        assert process.wait(10) == -9
    assert found[0].startswith(f"process {process.pid}: ")
    assert found[1] == "1 descriptors of shared memory"
    assert remains.after(mark, 0.0) == []


# Has as much as is worth a second look, and frees all but the end of it; then its own child says what it was given.
FREES = """
import subprocess, sys
pieces = [b"x" * (60_000 + number) for number in range(2000)]
del pieces[:-1]
subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('STUBSERVE_CHAOS_MEMORY'), flush=True)"])
sys.stdin.read()
"""


def test_memory_that_is_free_is_not_counted(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    environment = {**os.environ, **kept.environment}
    with subprocess.Popen(
        [sys.executable, "-c", FREES], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"None\n"
        before = rss_anon(process.pid) / MIB
        assert before > 100
        assert 1 < kept.mib(process.pid) < before - 80


def test_a_server_that_changes_over_may_answer_with_either_release() -> None:
    releases = Releases()
    began = len(releases.history)
    assert releases.since(began) == {0}
    releases.history.append(frozenset({0, 2}))
    assert releases.since(began) == {0, 2}
    releases.history.append(frozenset({2}))
    assert releases.since(began) == {0, 2}
    assert releases.since(len(releases.history)) == {2}


def test_growth_and_remains_are_faults() -> None:
    world = World()
    few, more = Counter({"socket:[N]": 3}), Counter({"socket:[N]": 4})
    chaos.judge(Life("SIGTERM", [50.0, 60.0], [few, few]), world)
    assert world.faults == []
    chaos.judge(Life("SIGKILL", [50.0, 90.0], [few, more], ["process 1: sleep"]), world)
    assert [fault.split(" ", 1)[1] for fault in world.faults] == [
        "left after SIGKILL: process 1: sleep",
        "the parent's memory grew in one life from 50 to 90 MiB",
        "the parent's descriptors grew in one life by {'socket:[N]': 1}",
    ]


def test_what_the_parent_has_open_for_a_stub_is_no_growth() -> None:
    world = World()
    few, with_stub = Counter({"socket:[N]": 2, "stubs": 1}), Counter({"socket:[N]": 3, "stubs": 2})
    chaos.judge(Life("SIGTERM", [50.0, 50.0], [few, with_stub]), world)
    assert world.faults == []
    chaos.judge(Life("SIGTERM", [50.0, 50.0], [few, with_stub + Counter({"socket:[N]": 1})]), world)
    assert [fault.split(" ", 1)[1] for fault in world.faults] == [
        "the parent's descriptors grew in one life by {'socket:[N]': 1}"
    ]


def test_segments_of_stubs_that_were_there_are_no_growth() -> None:
    world = World()
    segments = "/memfd:stubserve (deleted)"
    rest = [Counter({segments: 4, "stubs": 3}), Counter({segments: 16, "stubs": 3})]
    chaos.judge(Life("SIGTERM", [50.0, 50.0], rest, most_stubs=10), world)
    assert world.faults == []
    chaos.judge(Life("SIGTERM", [50.0, 50.0], rest, most_stubs=9), world)
    assert [fault.split(" ", 1)[1] for fault in world.faults] == [
        f"the parent's descriptors grew in one life by {{'{segments}': 6}}"
    ]


def test_what_ends_later_is_not_done_while_it_acts() -> None:
    began, may_end = threading.Event(), threading.Event()

    def act() -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)

    later = Later(0.0, act)
    assert began.wait(PATIENCE_S)
    assert not later.done
    may_end.set()
    later.now()
    assert later.done
