"""A thousand loads, unloads and changes of files at once: what is asked for last is served, and nothing is left."""

from __future__ import annotations

import functools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.real_server import PATIENCE_S, Serving, eventually, write_model
from tests.server.ensembles import load, run, unload, values, write_chain
from tests.server.test_model_control import NUMBER

MODELS = ("one", "two", "three")
CHANGES = 1000
# What a model that is being loaded, unloaded or is gone may say
REFUSED = (200, 400, 404, 500, 503)


@pytest.mark.parametrize("changes", [pytest.param(CHANGES, marks=pytest.mark.slow), 120])
def test_a_storm_of_loads_and_unloads(repository: Path, changes: int) -> None:
    for name in MODELS:
        write_model(repository, name, NUMBER.format(1, 1))
    write_chain(repository, "chain", "one", "two")
    with Serving(repository, "--model-control-mode=explicit", "--load-model=three") as server:
        random_ = random.Random(7)
        names = [random_.choice((*MODELS, "chain")) for _ in range(changes)]
        kinds = [random_.choice(("load", "load", "unload", "touch", "ask")) for _ in range(changes)]

        def change(number: int) -> int:
            name, kind = names[number], kinds[number]
            if kind == "touch":
                (repository / name / "notes").write_text(str(number))
                return 200
            if kind == "ask":
                return run(server, name, 0).status
            return (load if kind == "load" else unload)(server, name).status

        stop = threading.Event()
        probes: list[int] = []

        def probe() -> None:
            while not stop.is_set():
                probes.append(server.get("/v2/health/live").status)

        with ThreadPoolExecutor(33) as pool:
            probing = pool.submit(probe)
            outcomes = list(pool.map(change, range(changes)))
            stop.set()
            probing.result(PATIENCE_S)
        assert set(outcomes) <= set(REFUSED)
        assert set(probes) == {200}
        for name in (*MODELS, "chain"):
            (repository / name / "notes").write_text("the last change")
            assert load(server, name).status == 200
        assert [values(run(server, name, 0)) for name in (*MODELS, "chain")] == [[1]] * 4
        eventually(lambda: len(server.stub_pids()) == len(MODELS))
        rows = server.request("POST", "/v2/repository/index").json()
        assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(("chain", *MODELS), "READY")
        for name in ("chain", *MODELS):
            assert unload(server, name).status == 200
        eventually(lambda: not server.stub_pids())
        assert "unexpected error" not in server.output
        assert server.stop() == 0


def test_a_storm_of_changes_is_polled(repository: Path) -> None:
    for name in MODELS:
        write_model(repository, name, NUMBER.format(1, 1))
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with Serving(repository, *flags) as server:
        for number in range(CHANGES):
            name = MODELS[number % len(MODELS)]
            write_model(repository, name, NUMBER.format(number, number) if number % 7 else "this is no Python")
        for number, name in enumerate(MODELS):
            write_model(repository, name, NUMBER.format(-number - 1, 0))
        # A look may see half of what is written to a file; the next one sees all of it.
        for number, name in enumerate(MODELS):
            eventually(functools.partial(says, server, name, -number - 1))
        eventually(lambda: len(server.stub_pids()) == len(MODELS))


def says(server: Serving, model: str, number: float) -> bool:
    answer = run(server, model, 0)
    return answer.status == 200 and values(answer) == [number]
