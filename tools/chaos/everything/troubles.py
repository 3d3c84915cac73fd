"""What happens to a server of a run over everything, and to all that it leans on."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil

from tools.bench.processes import stubs

from ..models import NEGATES, SUMS, WORKS, works_with
from ..troubles import INSTANCES, MODELS, Troubles
from ..world import World
from . import models
from .surroundings import Later
from .tokens import Tokens

SHORT_S = 2.0
HANGS_S = 3.0
# Longer than --execute-timeout-secs, so that the server notices
FREEZES_S = 6.0
# A poll, a copy from the store, a start of all instances, with everything else going on
BACK_WITHIN_S = 60.0
# More than two, so that some were there before and others were not.
RELEASES = 3
SOURCES = {"works": WORKS, "negates": NEGATES, "sums": SUMS, "late": models.LATE}


class TroublesOfAll(Troubles):
    """One for each life. `around` has what there is to be troubled."""

    def __init__(self, world: World, around: Any, seed: int) -> None:
        super().__init__(world, seed, [*MODELS, *models.ADDED])
        self._around = around
        self._change = 0
        self._ends: list[Later] = []

    def kinds(self) -> list[Callable[[int], None]]:
        around = self._around
        found: list[Callable[[int], None]] = [*[self.kill_a_stub] * 6, self.stop_a_stub, self.freeze_a_stub]
        found += [self.change_tokens, self.change_traces, self.change_traces, self.change_log, self.fill_disk]
        found += [*[self.change_a_model] * 2, self.change_cached, self.break_a_model]
        if around.memory.possible:
            found.append(self.shorten_memory)
        if around.explicit:
            found += [*[self.load_anew] * 2, self.take_away, *[self.resize] * 2, *[self.resize_sums] * 2]
            found += [self.load_sums_anew]
        else:
            found += [self.remove_a_model, *[self.resize_on_disk] * 2]
        if around.certificates:
            found.append(self.exchange_certificate)
        if around.collector:
            found += [self.hang_the_collector, self.end_the_collector]
        if around.redis:
            found += [self.hang_redis, self.end_redis, *[self.roll] * 8]
        if around.store:
            found += [self.hang_the_store, self.end_the_store]
        return found

    # Processes

    def freeze_a_stub(self, pid: int) -> None:
        """A model that hangs: the server ends it when it has had its time."""
        if found := list(stubs(pid)):
            stub = psutil.Process(self._random.choice(found))
            stub.send_signal(signal.SIGSTOP)
            self._for_a_while(FREEZES_S, lambda: _continue(stub))

    # Models

    def change_a_model(self, pid: int) -> None:
        """Another file with the same meaning."""
        model = self._random.choice(sorted(SOURCES))
        self._change += 1
        self._around.place.put(model, "1/model.py", f"{SOURCES[model]}\n# Change {self._change}\n")
        self._load_what_lies_there(model)

    def change_cached(self, pid: int) -> None:
        """Answers of before must not be given any more."""
        self._change += 1
        self._around.place.put("cached", "config.pbtxt", models.CACHED_CONFIG % self._change)
        self._load_what_lies_there("cached")

    def break_a_model(self, pid: int) -> None:
        """What served goes on, and what is mended is loaded."""
        model = self._random.choice(["negates", "late", "adds"])
        place = self._around.place
        place.put(model, "config.pbtxt", "max_batch_size: many")
        if not self._around.explicit:
            self._for_a_while(HANGS_S, lambda: place.restore(model))
            return
        if self._repository("POST", f"/v2/repository/models/{model}/load", {}) == 200:
            self._world.fault(f"model {model} was loaded from a configuration that is none")
        place.restore(model)

    def remove_a_model(self, pid: int) -> None:
        model = self._random.choice(["negates", "late", "echo", "counts", "works"])
        self._around.place.take_away(model)
        self._for_a_while(HANGS_S, lambda: self._around.place.restore(model))

    def resize_on_disk(self, pid: int) -> None:
        self._around.place.put("works", "config.pbtxt", works_with(self._random.choice([1, 2, 3])))

    def roll(self, pid: int) -> None:
        """Another release, on one server after the other; sometimes the first goes back instead."""
        first, second = self._random.sample([0, 1], 2)
        (old,) = self._world.releases[first].history[-1]
        new = self._random.choice([release for release in range(RELEASES) if release != old])
        self._exchange(first, new)
        time.sleep(self._random.choice([0, 1]))
        if self._random.random() < 0.3:
            self._exchange(first, old)
        else:
            self._exchange(second, new)

    def _exchange(self, server: int, release: int) -> None:
        releases = self._world.releases[server]
        place = [self._around.place, self._around.neighbour.place][server]
        releases.history.append(releases.history[-1] | {release})
        place.put("released", "1/model.py", models.RELEASED % release)
        self.load("released", port=releases.port)
        releases.history.append(frozenset({release}))

    def _load_what_lies_there(self, model: str) -> None:
        if self._around.explicit:
            self.load(model)

    # What a server leans on

    def change_tokens(self, pid: int) -> None:
        tokens: Tokens = self._around.tokens
        tokens.change()

    def exchange_certificate(self, pid: int) -> None:
        self._around.certificates.issue()

    def change_traces(self, pid: int) -> None:
        level = self._random.choice([["TIMESTAMPS"], ["TIMESTAMPS", "TENSORS"], ["OFF"]])
        rate = self._random.choice(["1", "10"])
        path = self._random.choice(["/v2", "/v2/models/works", "/v2/models/mixed"])
        self._repository("POST", f"{path}/trace/setting", {"trace_level": level, "trace_rate": rate})

    def change_log(self, pid: int) -> None:
        level, form = self._random.choice([0, 1]), self._random.choice(["default", "ISO8601"])
        settings = {"log_verbose_level": level, "log_format": form}
        self._repository("POST", "/v2/logging", settings)

    def fill_disk(self, pid: int) -> None:
        self._around.disk.fill(pid)
        self._for_a_while(HANGS_S, lambda: self._around.disk.clear(pid))

    def shorten_memory(self, pid: int) -> None:
        self._around.memory(SHORT_S)

    def hang_the_collector(self, pid: int) -> None:
        self._around.collector.signal(signal.SIGSTOP)
        self._for_a_while(HANGS_S, lambda: self._around.collector.signal(signal.SIGCONT))

    def end_the_collector(self, pid: int) -> None:
        self._around.collector.stop()
        self._around.collector.start()

    def hang_the_store(self, pid: int) -> None:
        self._around.store.process.send_signal(signal.SIGSTOP)
        self._for_a_while(HANGS_S, lambda: self._around.store.process.send_signal(signal.SIGCONT))

    def end_the_store(self, pid: int) -> None:
        """Errors, and then all files are there again, each of them newer than before."""
        self._end_what_is_under_way()
        self._around.store.restart()
        self._around.place.fill()

    def hang_redis(self, pid: int) -> None:
        self._around.redis.process.send_signal(signal.SIGSTOP)
        self._for_a_while(HANGS_S, lambda: self._around.redis.process.send_signal(signal.SIGCONT))

    def end_redis(self, pid: int) -> None:
        """All that was kept is gone."""
        self._end_what_is_under_way()
        self._around.redis.stop()
        self._around.redis.start()

    # At rest

    def calm_down(self) -> None:
        self._end_what_is_under_way()
        self._repository("POST", "/v2/systemsharedmemory/unregister", {})
        for path in ("/v2", "/v2/models/works", "/v2/models/mixed"):
            self._repository("POST", f"{path}/trace/setting", {"trace_level": ["OFF"]})
        if self._around.explicit:
            super().calm_down()
        else:
            self._around.place.put("works", "config.pbtxt", works_with(INSTANCES))
            self._change += 1
        self._all_come_back()

    def _all_come_back(self) -> None:
        until = time.monotonic() + BACK_WITHIN_S
        while away := self._away():
            if time.monotonic() > until:
                self._world.fault(f"models that do not come back: {', '.join(sorted(away))}")
                return
            time.sleep(0.2)

    def _away(self) -> set[str]:
        connection = self._world.http()
        try:
            connection.request("POST", "/v2/repository/index", headers=self._world.headers)
            rows = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException) as error:
            return {f"all: {error!r}"}
        finally:
            connection.close()
        return set(self._models) - {row["name"] for row in rows if row.get("state") == "READY"}

    def _for_a_while(self, seconds: float, end: Callable[[], None]) -> None:
        """Ends a trouble later, or when there is to be none."""
        self._ends = [one for one in self._ends if not one.done]
        self._ends.append(Later(seconds, end))

    def _end_what_is_under_way(self) -> None:
        for one in self._ends:
            one.now()
        self._ends.clear()


def _continue(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
