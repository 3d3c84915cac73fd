"""Warm-up: the samples that an instance or an ensemble executes before it is ready (`model_warmup`).

Each life of a stub is warmed up: at the load, when instances are added, and when a stub is started again after its
death, because the filled caches, pools and compiled kernels have died with the process. Until the end of its warm-up
the instance is not ready, and its model's scheduler does not know it.

The batches go to the stub as any others do, so models call others, answer through senders and are watched by
EXECUTE_TIMEOUT_SECS. Statistics count them as upstream's do, without the responses of decoupled models. The answers are
not read: their memory is dropped as they come, and their errors fail the warm-up. The inputs are made anew for each
batch, since a model may write to its inputs, or keep them.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.errors import ServeError, internal, invalid
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.death import unhealthy
from stubserve.instances.seat import Seat
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import Results
from stubserve.memory.server_memory import Memory
from stubserve.serving.dispatcher import RESCHEDULED_IN_VAIN
from stubserve.serving.instance_model import InstanceModel
from stubserve.serving.warm_up_samples import Sample, SampleInput

log = logging.getLogger("stubserve.model")


class WarmUp:
    """The warm-up of one model version's instances."""

    def __init__(self, model: InstanceModel, samples: Sequence[Sample], memory: Memory) -> None:
        self._model = model
        self._samples = samples
        self._memory = memory

    async def run(self, seat: Seat, instance: str) -> None:
        """Runs all samples in a seat whose model is initialized. Raises ServeError for the first that fails.

        After a failure the stub is left as it is; the code that started it ends it.
        """
        name = f"model '{self._model.name}' instance {instance}"
        await run_samples(name, self._samples, lambda sample: self._execute(seat, instance, sample))

    async def _execute(self, seat: Seat, instance: str, sample: Sample) -> list[str]:
        """Runs a sample once: the errors of its responses. Raises ServeError if it cannot be run."""
        if seat.death is not None:
            raise unhealthy(instance, seat.death, seat.pid)
        max_batch_size = self._model.signature.max_batch_size
        if sample.is_too_large(max_batch_size):
            return [sample.too_large(instance, max_batch_size).message] * sample.requests
        requests: list[Request] = []
        added: list[list[Tensor]] = []
        begin = time.monotonic_ns()
        try:
            for _ in range(sample.requests):
                requests.append(Request(placed(sample.inputs, self._memory)))
                added.append(placed(sample.added, self._memory))
            batch = _SampleBatch(self._model, instance, seat.pid, requests)
            now = time.monotonic_ns()
            for request in requests:
                request.request_start_ns = request.queue_start_ns = begin
                request.compute_start_ns = now
            seat.work.owner, seat.on_death = batch, batch.on_death
            seat.work.execute(Work.of_slots(requests, added if sample.added else None))
        except BaseException:
            for request in requests:
                drop_blocks(request.inputs)
            raise
        finally:
            for tensors in added:
                drop_blocks(tensors)  # the stub's work holds what it has
        # If the load is given up meanwhile, the stub is ended, and the batch gets that as its error.
        return await batch.errors


async def run_samples(name: str, samples: Sequence[Sample], execute: Callable[[Sample], Awaitable[list[str]]]) -> None:
    """Runs all samples, each as often as it says. Raises ServeError for the first that fails."""
    for sample in samples:
        for iteration in range(1, sample.count + 1):
            log.debug("%s is running warmup sample '%s' for iteration %d", name, sample.name, iteration)
            try:
                errors = await execute(sample)
            except ServeError as error:
                errors = [error.message]
            if errors:
                log.debug("%s failed to run warmup sample '%s'", name, sample.name)
                text = "".join(f"{error}; " for error in errors)
                raise invalid(f"failed to run warmup sample '{sample.name}': {text}")


def placed(inputs: Iterable[SampleInput], memory: Memory) -> list[Tensor]:
    """Tensors with the bytes of inputs. Raises ServeError (503), and then nothing is held."""
    tensors: list[Tensor] = []
    try:
        for one in inputs:
            data, span = None, None
            if one.nbytes <= INLINE_BYTES:
                data = bytearray(one.nbytes)
                one.fill(memoryview(data))
            else:
                block = memory.block(one.nbytes)
                one.fill(block.view)
                span = block.whole()
            tensors.append(Tensor(one.name, one.datatype, one.shape, None if data is None else bytes(data), span))
    except BaseException:
        drop_blocks(tensors)
        raise
    return tensors


class _SampleBatch:
    """One batch of a warm-up: receives the stub's reports. `errors` is done when all requests are over."""

    def __init__(self, model: InstanceModel, instance: str, pid: int, requests: Iterable[Request]) -> None:
        self.errors: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._model = model
        self._instance = instance
        self._pid = pid
        self._unanswered = set(requests)
        self._found: list[str] = []
        self._has_run = False

    def on_results(self, instance: object, results: Results) -> None:
        for work, finished in results:
            for request, response in finished:
                self._take(request, response)
            self._model.delivery.executed(work.requests)
        self._has_run = True
        self._look_for_end()

    def on_response(self, instance: object, request: Request, response: Response, start_ns: int) -> None:
        self._take(request, response)
        self._look_for_end()

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        act()

    def on_rescheduled(self, instance: object, request: Request) -> None:
        self._take(request, Response(error=internal(RESCHEDULED_IN_VAIN)))

    def on_death(self, cause: str, unanswered: UnansweredRequests) -> None:
        for requests in unanswered:
            for request in requests:
                self._end(request)
        if not self.errors.done():
            self.errors.set_exception(unhealthy(self._instance, cause, self._pid))

    def _take(self, request: Request, response: Response) -> None:
        drop_blocks(response.outputs)
        if response.error is not None:
            self._found.append(response.error.message)
        if response.final:
            self._end(request)

    def _end(self, request: Request) -> None:
        if request in self._unanswered:
            self._unanswered.discard(request)
            drop_blocks(request.inputs)

    def _look_for_end(self) -> None:
        if self._has_run and not self._unanswered and not self.errors.done():
            self.errors.set_result(self._found)
