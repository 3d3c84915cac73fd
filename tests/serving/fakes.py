"""A clock, a scheduler, stubs and readers to drive the parts of serving by hand, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from stubserve.errors import ServeError
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Decision, Work
from stubserve.instances.death import RestartPolicy
from stubserve.instances.instance import Instance
from stubserve.instances.keeper import Keeper
from stubserve.instances.seat import Seat
from stubserve.instances.stub import Stub
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.memory.blocks import Block
from stubserve.model_config.complete import InstanceSpec
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.base import Scheduler
from stubserve.serving.answering import StageMaker
from stubserve.serving.instance_model import InstanceModel
from tests.inference.models import request as make


class Clock:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def __call__(self) -> int:
        return self.now_ns


class Reader:
    """Whoever asked: has the responses to its requests, in the order in which they came."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Response]] = []

    def request(self, id: str, *inputs: Tensor, **fields: Any) -> Request:
        return make(*inputs, id=id, on_response=self._on_response, admitted=True, **fields)

    def _on_response(self, request: Request, response: Response) -> None:
        self.got.append((request.id, response))

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.got]

    def error(self, id: str) -> ServeError:
        """The error in the only answer to a request."""
        (response,) = [response for answered, response in self.got if answered == id]
        assert response.final
        assert response.error is not None
        return response.error


class Blocks:
    """Memory that is counted, not there."""

    def __init__(self) -> None:
        self.live = 0

    def tensor(self) -> Tensor:
        self.live += 1
        return Tensor("T", 11, [1], None, Block(0, 4, memoryview(bytearray(4)), self._release).whole())

    def _release(self, block: Block) -> None:
        self.live -= 1


class Script(Scheduler):
    """A scheduler that decides what it was told to, one decision a poll; what it hears is in `heard`."""

    has_slots = True

    def __init__(self) -> None:
        self.decisions: list[Decision | Exception] = []
        self.waiting: list[Request] = []
        self.heard: list[tuple[str, object]] = []

    def decide(
        self,
        run: Sequence[tuple[Any, Work]] = (),
        answer: Sequence[tuple[Request, ServeError]] = (),
        wake_at_ns: int | None = None,
    ) -> None:
        decision = Decision()
        decision.run, decision.answer, decision.wake_at_ns = list(run), list(answer), wake_at_ns
        self.decisions.append(decision)

    def enqueue(self, request: Request, now_ns: int) -> None:
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        self.heard.append(("cancel", request))

    def response_complete(self, request: Request, response: Response) -> None:
        self.heard.append(("response_complete", request))

    def work_done(self, instance: Any, work: Work) -> None:
        self.heard.append(("work_done", work))

    def instance_idle(
        self, instance: Any, works: int = 1, closed: int = 0, ripe_after_ns: int = 0, most: int = 0
    ) -> None:
        self.heard.append(("instance_idle", instance))

    def instance_gone(self, instance: Any) -> None:
        self.heard.append(("instance_gone", instance))

    def poll(self, now_ns: int) -> Decision:
        decision = self.decisions.pop(0) if self.decisions else Decision()
        if isinstance(decision, Exception):
            raise decision
        return decision

    def drain(self) -> Sequence[Request]:
        waiting, self.waiting = self.waiting, []
        return waiting

    @property
    def plain(self) -> bool:
        return True

    @property
    def queued(self) -> int:
        return len(self.waiting)


class FakeRing:
    """The ring of a stub, which need not be told of anything."""

    def announce_soon(self) -> None:
        pass


class FakeWork:
    """The requests that a stub has."""

    name = "stub"

    def __init__(self) -> None:
        self.owner: Any = None
        self.instance: Any = None
        self.when_empty: Callable[[], None] | None = None
        self.full = False
        self.streams = 0
        self.ring = FakeRing()
        self.works: list[Work] = []
        self.batches = 0
        self.executed = 0
        self.open: list[Request] = []
        self.cancelled: list[Request] = []
        self.refuses: Exception | None = None

    def give(self, work: Work) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.works.append(work)
        self.batches += 1

    def execute(self, work: Work) -> None:
        self.give(work)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)

    def has(self, request: Request) -> bool:
        return any(request in work.requests for work in self.works)

    @property
    def is_empty(self) -> bool:
        return not self.works and not self.open

    def look_whether_empty(self) -> None:
        if self.when_empty is not None and self.is_empty:
            self.when_empty()


class FakeStub:
    """A stub without a process, and its seats. The test says what it answers, and when it dies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.name = ""
        self.death: str | None = None
        self.on_end: Any = None
        self.on_death: Any = None
        # A stub of its own, unless others share it
        self.stub = self
        self.seats: dict[int, FakeStub] = {0: self}
        self.stopping = False
        self.pid = 1
        self.stopped = asyncio.Event()
        self.work = FakeWork()
        self.checks_readiness = False
        self.readiness: Callable[[], tuple[bool, str]] = lambda: (True, "")

    def memory(self) -> int:
        return 1000

    async def is_ready(self) -> tuple[bool, str]:
        return self.readiness()

    async def stop(self, timeout_s: float) -> bool:
        self.stopped.set()
        return True

    # What the test has it do

    @property
    def batches(self) -> list[list[str]]:
        """The ids of the requests in each batch that it has."""
        return [[request.id for request in work.requests] for work in self.work.works]

    def finish(self, leave_open: Collection[Request] = (), took_ns: int = 1_000_000, **answers: Response) -> None:
        """Executes its first batch: requests are answered with nothing, or as `answers` have it, or left open."""
        work = self.work.works.pop(0)
        for request in work.requests:
            request.compute_input_end_ns = self._clock.now_ns
            request.compute_infer_end_ns = request.compute_end_ns = self._clock.now_ns + took_ns
        self.work.open += leave_open
        finished = [(r, answers.get(r.id) or Response()) for r in work.requests if r not in leave_open]
        self.work.owner.on_results(self.work.instance, [(work, finished)])
        self.work.look_whether_empty()

    def send(self, request: Request, response: Response) -> None:
        """A response through a sender."""
        if response.final and request in self.work.open:
            self.work.open.remove(request)
        self.work.owner.on_response(self.work.instance, request, response, self._clock.now_ns)
        self.work.look_whether_empty()

    def die(self) -> None:
        self.stub.end()

    def end(self) -> None:
        seats = list(self.seats.values())
        for seat in seats:
            seat.death = "killed by the test"
        self.on_end(self.death, [(seat, seat.left()) for seat in seats])

    def left(self) -> UnansweredRequests:
        executing, *waiting = [list(work.requests) for work in self.work.works] or [[]]
        open_, self.work.open = self.work.open, []
        self.work.executed = self.work.batches - len(self.work.works)
        self.work.works.clear()
        return UnansweredRequests(executing, [one for work in waiting for one in work], open_)


class Served:
    """A model with real instances, whose stubs are fakes: `stubs` by name of the instance, the latest of each."""

    def __init__(
        self,
        config: str = "",
        scheduler: Scheduler | None = None,
        restart_wait_s: float = 0.0,
        front: Sequence[StageMaker] = (),
    ) -> None:
        self.clock = Clock()
        self.reader = Reader()
        self.stubs: dict[str, FakeStub] = {}
        self.launched = asyncio.Event()
        self.config = parse_text(config, "config.pbtxt")
        self.model = InstanceModel(
            "m", 1, self.config, scheduler, self.clock, restart_wait_s=restart_wait_s, front=front
        )

    async def start(self, *names: str, passive: bool = False, share: bool = False) -> list[Instance]:
        """Instances that are ready and serve the model; they may `share` a stub."""
        keeper = self.keeper() if share else None
        instances = [self.instance(name, passive, keeper) for name in names]
        self.model.begin_with(instances)
        for instance in instances:
            await instance.start()
        return instances

    def keeper(self) -> Keeper:
        async def launch(instances: Sequence[Instance], _: Stub | None) -> tuple[Stub, Sequence[Seat]]:
            seats = [FakeStub(self.clock) for _ in instances]
            for number, (instance, seat) in enumerate(zip(instances, seats, strict=True)):
                seat.name = instance.name
                seat.stub = seats[0]
                seats[0].seats[number] = self.stubs[instance.name] = seat
            self.launched.set()
            return cast(Stub, seats[0]), cast(Sequence[Seat], seats)

        return Keeper(launch, self.model, RestartPolicy(0))

    def instance(self, name: str, passive: bool = False, keeper: Keeper | None = None) -> Instance:
        return Instance(InstanceSpec(name, "CPU", 0, passive), keeper or self.keeper())

    def submit(self, id: str, *inputs: Tensor) -> Request:
        request = self.reader.request(id, *inputs)
        self.model.submit(request)
        return request
