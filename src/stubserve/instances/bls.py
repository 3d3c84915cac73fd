"""The requests that a stub's model makes (business logic scripting), as the parent carries them out.

A call is submitted like any client's request: it passes admission, waits with the target's scheduler, and is counted.
Its answers go back through the calling stub's answer ring. Tensors do not move: inputs are blocks in the caller's
segment, or spans that it got; outputs are held until the caller releases them. `stubserve_stub.api.bls` defines which
model may write to which memory; here that is only `Span.shared`.

A call that keeps its instance from finishing its batch is refused if it could never run, see `waiting`.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stubserve_stub.wire.messages import Requested, WireRequest, WireResponse
from stubserve_stub.wire.options import RequestOptions

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ModelFinder, ServedModel, Waiter
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.trace import find as find_trace
from stubserve.instances import deadlock
from stubserve.instances.batch import read_tensor, write_tensor
from stubserve.instances.rings import AnswerRing
from stubserve.memory.device_pools import DeviceSpan
from stubserve.memory.stub_memory import StubMemory

# How many untaken answers to a call, or bytes of them, there may be before the model that makes them is paused. Both
# are several times the amount that a stub takes before it reports.
_WAITING = 64
_WAITING_BYTES = 8 << 20


class StubCall(Call):
    """One call of a stub, which knows it by `number`.

    `waiting` and `waiting_bytes` are the answers of a decoupled model that have not been reported as taken.
    """

    __slots__ = ("_calls", "blocking", "number", "waiting", "waiting_bytes")

    def __init__(self, calls: StubCalls, model: ServedModel, number: int, blocking: bool) -> None:
        super().__init__(model)
        self._calls = calls
        self.number = number
        self.blocking = blocking
        self.waiting = 0
        self.waiting_bytes = 0

    def respond(self, request: Request, response: Response) -> None:
        self._calls.answer(self, request, response)

    def asker(self) -> str:
        return f"model instance '{self._calls.caller}'"

    def is_behind(self) -> bool:
        """Whether the caller should take some answers before there are more."""
        return self.waiting >= _WAITING or self.waiting_bytes >= _WAITING_BYTES


class StubCalls:
    """The calls that one stub has under way. It handles the stub's messages about them (`messages.handlers_of_parent`).

    `waiter` represents the stub in the search for circles. `memory` is the stub's. `given` returns the tensors that the
    stub has at the moment.
    """

    def __init__(
        self,
        waiter: Waiter,
        models: ModelFinder,
        memory: StubMemory,
        answers: AnswerRing,
        given: Callable[[], Iterable[Tensor]],
    ) -> None:
        self._waiter = waiter
        self._models = models
        self._memory = memory
        self._answers = answers
        self._given = given
        self._open: dict[int, StubCall] = {}
        # Models with new calls in their queues
        self.due: list[ServedModel] = []
        # Queries whether a model is ready, and the requests that wait for the answers
        self._checks: dict[asyncio.Task[None], Request] = {}

    @property
    def caller(self) -> str:
        return self._waiter.name

    def blocking(self) -> Sequence[StubCall]:
        """The calls that the stub's batch needs to finish."""
        return [call for call in self._open.values() if call.blocking] if self._open else ()

    def on_call(
        self,
        call: int,
        blocking: bool,
        decoupled: bool,
        model: str,
        version: int,
        request: WireRequest,
        released: Sequence[int],
    ) -> None:
        try:
            self._start(call, blocking, decoupled, model, version, request)
        except ServeError as error:
            self._send_refusal(call, model, error)
        self._memory.release(released)

    def on_call_blocks(self, call: int) -> None:
        found = self._open.get(call)
        if found is None:
            return
        found.blocking = True
        request = found.request
        chain = None if request is None else deadlock.find_deadlock(self._waiter, found.model, request)
        if request is not None and chain is not None:
            self._refuse(found, _circle(found.model.signature.model, chain))
            found.model.cancel(request)

    def on_taken(self, call: int, count: int, nbytes: int) -> None:
        found = self._open.get(call)
        if found is None:
            return
        found.waiting -= count
        found.waiting_bytes -= nbytes
        if found.request is not None and not found.is_behind():
            found.request.resume()

    def on_cancel(self, call: int) -> None:
        found = self._open.get(call)
        if found is not None:
            found.cancel()

    def on_discard(self, call: int) -> None:
        found = self._open.pop(call, None)
        if found is not None and found.request is not None:
            found.request.resume()

    def schedule(self) -> None:
        """Runs the calls of the last messages; once for all of them, so that they can share a batch."""
        due, self.due = self.due, []
        for model in due:
            model.poll()

    async def answer_readiness(self, query: dict[str, Any]) -> dict[str, Any]:
        """Whether another model is ready: the answer as "value", or why there is none as "error"."""
        try:
            model = self._models.find(query["model"], query["version"])
        except ServeError as error:
            return {"error": error.message} if error.code is Code.INVALID_ARG else {"value": False}
        return {"value": not await model.check_ready()}

    def close(self) -> None:
        for check in self._checks:
            check.cancel()
        calls = list(self._open.values())
        self._open.clear()
        self._answers.close()
        for call in calls:
            call.cancel()

    def _start(self, number: int, blocking: bool, decoupled: bool, name: str, version: int, wire: WireRequest) -> None:
        now = time.monotonic_ns()
        id, options, trace, outputs, given = wire
        inputs: list[Tensor] = []
        try:
            for tensor in given:
                inputs.append(read_tensor(tensor, self._memory, self._waiter.name, self._given, kept=True))  # noqa: PERF401 - those before a bad one count
            model = self._models.find(name, "" if version == -1 else str(version))
            if model.down():
                raise _not_ready(name, model.why_not_ready())
            if model.signature.decoupled and not decoupled:
                raise internal(
                    f"Model {name} is using the decoupled. The current BLS request call doesn't support models using "
                    "the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                    "'async_exec' calls for decoupled models.'"
                )
        except BaseException:
            drop_blocks(inputs)
            raise
        wanted: Requested = None if outputs is None else list(outputs)
        if self._memory.pools is not None:
            wanted = _on_devices(outputs, inputs, model.signature)
        request = Request(inputs, id, RequestOptions(*options), wanted)
        request.request_start_ns = now
        call = StubCall(self, model, number, blocking)
        call.admit(request)
        chain = deadlock.find_deadlock(self._waiter, model, None) if blocking else None
        if chain is not None:
            call.give_up(request)
            raise _circle(name, chain)
        above = None if trace is None else find_trace(trace[0])
        if above is not None:
            request.trace = above.child(model.name, model.version, now)
        if model.checks_readiness():
            call.request = request
            check = asyncio.get_running_loop().create_task(self._submit_if_ready(call, request))
            self._checks[check] = request
            check.add_done_callback(functools.partial(self._checked, call))
        else:
            call.submit(request, together=True)
            if model not in self.due:
                self.due.append(model)
        self._open[number] = call

    async def _submit_if_ready(self, call: StubCall, request: Request) -> None:
        """Asks the target's `is_ready` first, as upstream does before each call."""
        reason = await call.model.check_ready()
        try:
            if reason:
                call.give_up(request)
                raise _not_ready(call.model.signature.model, reason)
            call.submit(request)
        except ServeError as error:
            self._refuse(call, error)

    def _checked(self, call: StubCall, check: asyncio.Task[None]) -> None:
        request = self._checks.pop(check)
        if check.cancelled():  # maybe before its first step, and then its own code has not run
            call.give_up(request)

    def _refuse(self, call: StubCall, error: ServeError) -> None:
        """Answers a call instead of its model; the model's own answer is then dropped."""
        call.request = None
        if call.number in self._open:
            del self._open[call.number]
            self._send_refusal(call.number, call.model.signature.model, error)

    def _send_refusal(self, number: int, name: str, error: ServeError) -> None:
        text = f"Model {name} - Error when running inference: {error.message}"
        self._answers.send(number, True, ((text, int(Code.INTERNAL)), (), None))

    # Back

    def answer(self, call: StubCall, request: Request, response: Response) -> None:
        """Passes a response on to the stub. For a call that is no longer known, the response's maker drops it."""
        if call.number not in self._open:
            return
        if response.final:
            del self._open[call.number]
        wire: WireResponse | None
        if response.empty:
            wire = None
        elif response.error is not None:
            wire = ((response.error.message, int(response.error.code)), (), None)
        else:
            wire = (None, [write_tensor(tensor, self._memory) for tensor in response.outputs], response.parameters)
        self._answers.send(call.number, response.final, wire)
        if not response.final:
            call.waiting += 1
            call.waiting_bytes += sum(tensor.nbytes for tensor in response.outputs)
            if call.is_behind():
                request.pause()


def _on_devices(outputs: Requested, inputs: Sequence[Tensor], signature: Signature) -> Requested:
    """The outputs that a call asks for, with memory of GPUs in mind. A cache keeps answers on the host."""
    stays = isinstance(outputs, dict)
    if not any(isinstance(tensor.span, DeviceSpan) for tensor in inputs) and (not stays or signature.is_cached):
        return list(outputs) if outputs else None
    return dict.fromkeys(outputs or signature.outputs, stays)


def _not_ready(name: str, reason: str) -> ServeError:
    return internal(f"Failed for execute the inference request. Model '{name}' is not ready. {reason}")


def _circle(name: str, chain: list[str]) -> ServeError:
    way_out = f"Give model '{name}' more instances, or end the recursion sooner."
    if any("the resource '" in one for one in chain):
        way_out = "There has to be more of the resource, or a model must not need one that it shares with its callers."
    return internal(
        f"the request to model '{name}' can never run, because every instance that could take it waits for an instance "
        f"that waits for it: {' -> '.join(chain)}. {way_out}"
    )
