"""Runs cases against one server and keeps what came back as comparable data."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .compare import describe_answer
from .request import Case, Concurrent, Exchange
from .servers import Server, running
from .statistics import movement, settled
from .wire import Answer, exchange

Outcome = dict[str, Any]
# Cases that take longer are named while the suite runs: usually a server that does not answer.
SLOW_S = 2.5
# What real Triton answers from then on for a model whose stub has died: it has to be started afresh.
DEAD_STUB = "is not healthy."


def _send(server: Server, step: Exchange) -> Answer:
    return exchange(server.port, step.parts, step.methods, step.timeout, step.expect_close)


def outcome(server: Server, case: Case) -> Outcome:
    """Plays one case: a list of answers by step, and the statistics movement where the case asks for it."""
    before = settled(server, case.stats) if case.stats else {}
    steps: list[Any] = []
    for step in case.steps:
        if isinstance(step, Concurrent):
            with ThreadPoolExecutor(len(step.exchanges)) as pool:
                answers = list(pool.map(lambda one: _send(server, one), step.exchanges))
            steps.append([describe_answer(answer, server, case.pick) for answer in answers])
        else:
            steps.append(describe_answer(_send(server, step), server, case.pick))
    result: Outcome = {"steps": steps}
    if case.stats:
        result["statistics"] = movement(before, settled(server, case.stats))
    if not server.alive():
        result["server"] = "died"
    return result


def outcomes(name: str, cases: Iterable[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Each case and its outcome on server ``name``; a setup is started again if a case kills something."""
    waiting: dict[str, list[Case]] = {}
    for case in cases:
        waiting.setdefault(case.server, []).append(case)
    for setup, batch in waiting.items():
        while batch:
            _say(f"{name}: starting with the {setup} models, {len(batch)} cases")
            with running(name, setup) as server:
                usable = True
                while batch and usable:
                    case = batch.pop(0)
                    started = time.monotonic()
                    result = outcome(server, case)
                    usable = server.alive() and DEAD_STUB not in json.dumps(result)
                    took = time.monotonic() - started
                    if took > SLOW_S or not usable:
                        died = "" if usable else ", server or stub died"
                        _say(f"  {case.name}: {took:.1f} s{died}")
                    yield case, result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
