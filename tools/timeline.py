"""Draws where the time of an ensemble's requests goes: `python -m tools.timeline ENSEMBLE COMMAND...`.

It reads the statistics of the ensemble's members, runs COMMAND (a client that sends requests), reads them again, and
draws the mean of what each step took for one request of the ensemble, from when its inputs are there at the earliest.
`.` is waiting in the queue, `#` computing with what the backend needs to get inputs and to hand over outputs. Requests
that others send meanwhile count as well. It asks over HTTP alone, so it works with any server of the protocol.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 60
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Step:
    """A step's mean times in ms for one request of the ensemble. `start` is when the last of its inputs was made."""

    model: str
    start: float
    queue: float
    compute: float

    @property
    def end(self) -> float:
        return self.start + self.queue + self.compute


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.timeline", description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (%(default)s)")
    parser.add_argument("ensemble", help="the ensemble's name")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what sends requests to it")
    options = parser.parse_args()
    if not options.command:
        parser.error("a command that sends requests is missing")
    try:
        steps = ask(options.url, f"v2/models/{options.ensemble}/config").get("ensemble_scheduling", {}).get("step", [])
        if not steps:
            sys.exit(f"{options.ensemble} is no ensemble")
        names = dict.fromkeys([options.ensemble, *(step["model_name"] for step in steps)])
        before = {name: totals(options.url, name) for name in names}
        subprocess.run(options.command, check=True, stdout=subprocess.DEVNULL)
        after = {name: totals(options.url, name) for name in names}
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"timeline stopped: {error}")
    spent = {name: {part: after[name][part] - before[name][part] for part in after[name]} for name in names}
    requests = spent[options.ensemble]["requests"]
    if not requests:
        sys.exit(f"no request of {options.ensemble} was answered meanwhile")
    print(f"{options.ensemble}: mean of {requests} request{'' if requests == 1 else 's'}")
    print("\n".join(drawn(timed(steps, spent, requests))))


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{url}/{path}", timeout=30) as answer:
        return json.load(answer)


def totals(url: str, model: str) -> dict[str, int]:
    """What all versions of a model have spent since it was loaded: requests, and ns in the queue and in computing."""
    parts = [row["inference_stats"] for row in ask(url, f"v2/models/{model}/stats")["model_stats"]]
    return {
        "requests": sum(int(part["success"]["count"]) for part in parts),
        "queue": sum(int(part["queue"]["ns"]) for part in parts),
        "compute": sum(int(part[name]["ns"]) for part in parts for name in _COMPUTE),
    }


def timed(steps: Sequence[Mapping[str, Any]], spent: Mapping[str, Mapping[str, int]], requests: int) -> list[Step]:
    """The steps in the order in which they begin. A model that is used in several steps has its time shared by them."""
    models = [step["model_name"] for step in steps]
    made: dict[str, float] = {}  # tensor -> when it is there
    found: list[Step] = []
    waiting = list(steps)
    produced = {tensor for step in steps for tensor in step["output_map"].values()}
    while waiting:
        ready = [step for step in waiting if all(t in made or t not in produced for t in step["input_map"].values())]
        if not ready:
            raise ValueError("the steps wait for each other")
        for step in ready:
            waiting.remove(step)
            model = step["model_name"]
            share = requests * models.count(model) * 1e6
            start = max((made.get(tensor, 0.0) for tensor in step["input_map"].values()), default=0.0)
            found.append(Step(model, start, spent[model]["queue"] / share, spent[model]["compute"] / share))
            made.update(dict.fromkeys(step["output_map"].values(), found[-1].end))
    return sorted(found, key=lambda step: step.start)


def drawn(steps: Sequence[Step]) -> list[str]:
    """One line for each step."""
    names, whole = max(len(step.model) for step in steps), max(step.end for step in steps) or 1.0
    lines = []
    for step in steps:
        start, middle, end = (round(WIDTH * at / whole) for at in (step.start, step.start + step.queue, step.end))
        bar = " " * start + "." * (middle - start) + "#" * max(end - middle, 1)
        lines.append(
            f"{step.model:{names}}  {bar:{WIDTH + 1}} queue {step.queue:.1f} ms, compute {step.compute:.1f} ms"
        )
    return lines


if __name__ == "__main__":
    main()
