"""What happens to a server: its stubs are killed, its models loaded anew, taken away and resized, under load."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import render_json
from tools.bench.processes import stubs

from . import models
from .world import ANSWER_WITHIN_S, World

# In this order: ensembles come when their members are there.
MODELS = ["works", "sums", "keeps", "counts", "calls", "negates", "subtracts", "chain", "fork", "counted"]
INSTANCES = 2
# Loads wait for the queue of what they replace, and for each other.
LOADED_WITHIN_S = 2 * ANSWER_WITHIN_S


class Troubles:
    """Makes trouble for the server of `world`, which has these `models`. `tally` counts it by kind."""

    def __init__(self, world: World, seed: int = 0, models: Sequence[str] = MODELS) -> None:
        self.tally: Counter[str] = Counter()
        self._world = world
        self._random = random.Random(seed)
        self._models = models
        self._turn = 0

    def kinds(self) -> list[Callable[[int], None]]:
        """What may happen, each as often as it is more frequent than others."""
        return [
            *[self.kill_a_stub] * 6,
            self.stop_a_stub,
            *[self.load_anew] * 2,
            self.take_away,
            *[self.resize] * 2,
            *[self.resize_sums] * 2,
            self.load_sums_anew,
        ]

    def one(self, pid: int) -> None:
        """One of them, whichever; `pid` is the server's."""
        trouble = self._random.choice(self.kinds())
        self.tally[trouble.__name__] += 1
        trouble(pid)

    def kill_a_stub(self, pid: int) -> None:
        self._signal(pid, signal.SIGKILL)

    def stop_a_stub(self, pid: int) -> None:
        """As an operator does who takes the stub for the server."""
        self._signal(pid, signal.SIGTERM)

    def load_anew(self, pid: int) -> None:
        self.load(self._random.choice(self._models))

    def take_away(self, pid: int) -> None:
        model = self._random.choice(self._models)
        self._repository("POST", f"/v2/repository/models/{model}/unload", {})
        time.sleep(self._random.choice([0, 0.2]))
        self.load(model)

    def resize(self, pid: int) -> None:
        self.load("works", _config(models.works_with(self._random.choice([1, 2, 3]))))

    def resize_sums(self, pid: int) -> None:
        """Its sequences stay where they are."""
        self.load("sums", _config(models.sums_with(self._random.choice([1, 2, 3]), self._turn)))

    def load_sums_anew(self, pid: int) -> None:
        """Its sequences go on with what was there before."""
        self._turn += 1
        self.load("sums", _config(models.sums_with(INSTANCES, self._turn)))

    def calm_down(self) -> None:
        """All models as they were at first. A plain load would keep the configuration that came with the last one."""
        self.load("works", _config(models.works_with(INSTANCES)))
        self.load("sums", _config(models.sums_with(INSTANCES, self._turn)))
        for model in self._models:
            self.load(model)

    def load(self, model: str, document: dict[str, object] | None = None, port: int = 0) -> None:
        """A load may fail when its stub is killed; then it is asked for again."""
        for _ in range(20):
            if self._repository("POST", f"/v2/repository/models/{model}/load", document or {}, port) == 200:
                return
            self.tally["loads that failed"] += 1
        self._world.fault(f"model {model} cannot be loaded any more")

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if found := list(stubs(pid)):
            os.kill(self._random.choice(found), number)

    def _repository(self, method: str, path: str, document: dict[str, object], port: int = 0) -> int:
        """The status, 0 where there is none; of the server of the life, or that of this port."""
        began = time.monotonic()
        connection = self._world.http(port, LOADED_WITHIN_S)
        try:
            connection.request(method, path, json.dumps(document), self._world.headers)
            response = connection.getresponse()
            response.read()
        except TimeoutError:
            if self._world.ran_since(began):
                self._world.fault(f"no end of {path} within {LOADED_WITHIN_S:.0f} s")
            return 0
        finally:
            connection.close()
        return response.status


class Kills(Troubles):
    """Stubs are killed, and nothing else happens."""

    def kinds(self) -> list[Callable[[int], None]]:
        return [self.kill_a_stub]


def _config(text: str) -> dict[str, object]:
    """The body of a load with the configuration that a file would have."""
    return {"parameters": {"config": render_json(parse_text(text, "config.pbtxt"))}}
