"""What a queued request costs the schedulers alone, by how many sequences live, instances serve and models are loaded.

`python -m tools.bench.scheduler_curves` prints a table of processor times. There is no server and no stub: the
script plays an owner whose instances execute in no time, by a clock of its own. Requests of sequences that are under
way come 32 at a time, 8 to each of four instances, all taken at random: so batches have the same size everywhere, and
what a batch costs does not hide what a request does.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stubserve_stub.wire.datatypes import BY_NAME
from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.request import SEQUENCE_START, Request
from stubserve.inference.tensor import Tensor
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler

ROUNDS = 5
REQUESTS = 20_000
AT_ONCE = 32
GROUPS = 4
FEW = 128
ROWS = 32

CONFIG = """
    backend: "python" max_batch_size: 32
    input {{ name: "IN" data_type: TYPE_INT32 dims: [1] }}
    output {{ name: "OUT" data_type: TYPE_INT32 dims: [1] }}
    {batching}
"""
CONTROLS = """
    max_sequence_idle_microseconds: 60000000
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
    control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


@dataclass(frozen=True)
class Point:
    """One place on a curve. `live` sequences and `instances` are those of all models together.

    With `few` the same 128 sequences have all the requests: what then tells points apart is not that the processor's
    caches are too small for all that lives.
    """

    strategy: str
    live: int
    instances: int
    models: int = 1
    few: bool = False

    @property
    def config(self) -> str:
        if self.strategy == "dynamic":
            return CONFIG.format(batching="dynamic_batching { }")
        strategy = "direct { }"
        if self.strategy == "oldest":
            strategy = f"oldest {{ max_candidate_sequences: {-(-self.live // self.instances)} }}"
        return CONFIG.format(batching=f"sequence_batching {{ {strategy} {CONTROLS} }}")


def points() -> list[Point]:
    """All that is measured. With the direct strategy an instance has as many sequences as a batch has places."""
    return [
        *(Point("direct", live, max(1, live // ROWS)) for live in (128, 3_200, 100_000)),
        *(Point("oldest", live, 4) for live in (32, 128, 3_200, 100_000)),
        Point("oldest", 100_000, 4, few=True),
        Point("oldest", 3_200, 100),
        Point("oldest", 100_000, 100),
        Point("oldest", 32_000, 4_000, 1_000),
        *(Point("dynamic", 0, instances) for instances in (4, 100)),
        Point("dynamic", 0, 4_000, 1_000),
    ]


class Owner:
    """Schedulers with instances that are idle again as soon as they have been given something."""

    def __init__(self, point: Point) -> None:
        self.now_ns = 0
        config = normalise(parse_text(f'name: "m" {point.config}', "config.pbtxt"), "m", None)
        self._schedulers = [create_scheduler(config) for _ in range(point.models)]
        for scheduler in self._schedulers:
            for number in range(point.instances // point.models):
                scheduler.instance_idle(number)
        self._few = FEW if point.few else None
        self._instances_each = point.instances // point.models
        self._live = [range(1 + part * point.live // point.models, 1 + (part + 1) * point.live // point.models)
                      for part in range(point.models)]  # fmt: skip
        for scheduler, sequences in zip(self._schedulers, self._live, strict=True):
            for sequence in sequences:
                scheduler.enqueue(made(sequence, SEQUENCE_START), 0)
            self._run(scheduler)

    def schedule(self, seed: int) -> Iterator[tuple[Scheduler, Sequence[Request]]]:
        """What comes: requests to one model at a time, made beforehand."""
        source = random.Random(seed)
        for _ in range(REQUESTS // AT_ONCE):
            which = source.randrange(len(self._schedulers))
            live = self._live[which]
            several = [0] * AT_ONCE
            if live:
                # Sequences have been dealt out to the instances in turn.
                instances = [source.randrange(self._instances_each) for _ in range(GROUPS)]
                several = [
                    sequence
                    for instance in instances
                    for sequence in source.sample(live[instance : self._few : self._instances_each], AT_ONCE // GROUPS)
                ]
            yield self._schedulers[which], [made(sequence) for sequence in several]

    def play(self, schedule: Sequence[tuple[Scheduler, Sequence[Request]]]) -> float:
        """The processor time that a request takes, in µs."""
        begin = time.process_time_ns()
        for scheduler, requests in schedule:
            self.now_ns += 1_000_000
            for request in requests:
                scheduler.enqueue(request, self.now_ns)
            self._run(scheduler)
        count = sum(len(requests) for _, requests in schedule)
        return (time.process_time_ns() - begin) / count / 1000

    def _run(self, scheduler: Scheduler) -> None:
        while scheduler.queued:
            for instance, work in scheduler.poll(self.now_ns).run:
                if scheduler.has_slots:
                    scheduler.work_done(instance, work)
                scheduler.instance_idle(instance)


def made(sequence: int, flags: int = 0) -> Request:
    tensor = Tensor("IN", BY_NAME["INT32"].number, [1, 1], bytes(4))
    return Request([tensor], options=RequestOptions(sequence, flags))


def measure(point: Point) -> float:
    """The best of several rounds, in µs a request."""
    owner = Owner(point)
    found = []
    for seed in range(ROUNDS):
        schedule = list(owner.schedule(seed))
        gc.collect()
        gc.disable()
        found.append(owner.play(schedule))
        gc.enable()
    return min(found)


def main() -> None:
    print("| strategy | live sequences | instances | models | µs a request |")
    print("|---|---|---|---|---|")
    for point in points():
        live = f"{point.live:,}" if point.live else "-"
        live += f", {FEW} of them at work" if point.few else ""
        print(
            f"| {point.strategy} | {live} | {point.instances:,} | {point.models:,} | {measure(point):.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
