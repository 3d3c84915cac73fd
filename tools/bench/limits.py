"""What a queued request costs with the rate limiter, from the schedulers and the dispatcher alone.

`python -m tools.bench.limits`. There are no stubs and no sockets: instances are objects that take work, and the clock
stands still. Each row has so many models with so many instances each, which all share one resource that lets a quarter
of the instances of a model run; requests go to the models in turn, and each batch that was handed out is done at once.
The first rows are without a limiter.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace

from stubserve.errors import ServeError
from stubserve.inference.request import Request, Response
from stubserve.inference.work import Work
from stubserve.rate_limiter.dispatcher import LimitedDispatcher
from stubserve.rate_limiter.limiter import RateLimiter
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.serving.dispatcher import Dispatcher

REQUESTS = 10_000
ROUNDS = 3


class Instance:
    """Takes work, and notes that it has some."""

    takes_work = True
    streams = 0
    spec = SimpleNamespace(resources=[("R", False, 1)], device_id=0, priority=1)

    def __init__(self, name: str, model: int, busy: deque[tuple[Instance, Work]]) -> None:
        self.name = name
        self.model = model
        self._busy = busy

    def execute(self, work: Work) -> None:
        self._busy.append((self, work))

    def announce(self) -> None:
        pass

    def drop_states(self, sequences: Iterable[int]) -> None:
        pass


class NoAnswers:
    """Nothing fails here."""

    def fail(self, requests: Iterable[Request], error: ServeError, outcome: str | None) -> None:
        raise error


def _unread(request: Request, response: Response) -> None:
    pass


def cost_us(models: int, instances: int, limited: bool, batching: bool) -> float:
    """Microseconds for a request, from being queued to its work being done."""
    busy: deque[tuple[Instance, Work]] = deque()
    limiter = RateLimiter({("R", None): max(1, models * instances // 4)})
    dispatchers: list[Dispatcher] = []
    for model in range(models):
        scheduler = DynamicBatcher(8) if batching else DynamicBatcher(1)
        own = [Instance(f"{model}_{number}", model, busy) for number in range(instances)]
        if limited:
            dispatcher = LimitedDispatcher(limiter, str(model), scheduler, NoAnswers(), lambda: 1)
            for instance in own:
                dispatcher.limit(instance)
        else:
            dispatcher = Dispatcher(str(model), scheduler, NoAnswers(), lambda: 1)
        for instance in own:
            dispatcher.join(instance)
        dispatchers.append(dispatcher)
    requests = [Request([], on_response=_unread) for _ in range(REQUESTS)]
    # As many wait as instances may run, so that there is always somebody in line.
    most = max(1, models * instances // 2)
    begin = time.perf_counter()
    for number, request in enumerate(requests):
        dispatcher = dispatchers[number % models]
        dispatcher.enqueue(request)
        dispatcher.poll()
        if number >= most and busy:
            instance, work = busy.popleft()
            dispatchers[instance.model].work_done(instance, [(work, ())])
    while busy:
        instance, work = busy.popleft()
        dispatchers[instance.model].work_done(instance, [(work, ())])
    took = time.perf_counter() - begin
    if any(dispatcher.queued for dispatcher in dispatchers):
        raise RuntimeError("a request was forgotten")
    return took / REQUESTS * 1e6


async def main() -> None:
    print("limiter   scheduler   models  instances of each   µs for a request")
    for limited in (False, True):
        for batching in (False, True):
            for models, instances in ((1, 1), (1, 4), (1, 100), (10, 4), (100, 4), (1000, 4)):
                best = min(cost_us(models, instances, limited, batching) for _ in range(ROUNDS))
                on, kind = ("on" if limited else "off"), ("dynamic" if batching else "default")
                print(f"{on:9} {kind:11} {models:6} {instances:18} {best:18.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
