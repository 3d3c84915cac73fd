"""One request to an ensemble: turns the runs of the flow into requests to members.

`ensembles.flow` decides what runs when. Here its tensors get memory, its runs become requests, and their
answers become tensors again.

**Memory.** No tensor is copied between steps. Each use of a tensor is one hold on its span. The hold of a step's input
belongs to the step's request, which drops it after its final response; the hold of an output belongs to the response. A
tensor that is used more than once is shared (`Span.shared`): each reader gets a copy of its own, so a model that writes
to its input does no harm. A tensor that is used once belongs to its reader as a client's input would, also if a step
has passed it on: after its only response the step does not have it any more.

**Failure.** The first error counts. Nothing new is begun, and all that is under way is cancelled. The error is reported
when all of it has ended, because until then models may use the request's memory.
"""

# Compiled by mypyc.
from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from stubserve.ensembles.backpressure import Gate, RunsAtGates, StepPauses
from stubserve.ensembles.flow import EnsembleFlow, StepRun
from stubserve.ensembles.plan import EnsemblePlan, Step
from stubserve.ensembles.steps import (
    FlowTensor,
    Prospect,
    StepCall,
    drop,
    drop_inputs,
    ensemble_outputs,
    given_inputs,
    on_devices,
    step_outputs,
    step_request,
)
from stubserve.errors import Code, ServeError, internal, invalid
from stubserve.inference.request import CANCELLED, OTHER_FAILURE, Request, Response
from stubserve.inference.served_model import BlockingCall, ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks

log = logging.getLogger("stubserve.model")


class Ensemble(Protocol):
    """The ensemble, as its runs see it."""

    name: str
    plan: EnsemblePlan
    signature: Signature
    gates: Mapping[Step, Gate]  # most ensembles have none
    entangled: Collection[Step]  # those that cannot wait for later steps, which may need the same instances

    def find_members(self, steps: Sequence[Step]) -> tuple[dict[int, ServedModel], bool]:
        """The models of steps, by index, and whether its identity is made of others. Raises ServeError."""

    def respond(self, request: Request, response: Response) -> None:
        """Passes a response on, with a hold on each of its outputs."""

    def succeeded(self, run: EnsembleRun) -> None:
        """Called before the final response."""

    def failed(self, run: EnsembleRun, error: ServeError, outcome: str) -> None:
        """Called in place of the final response: nothing of the run is under way any more."""


class EnsembleRun:
    """A run of `ensemble` for an admitted `request`, over once the ensemble has been told its end.

    As a `deadlock.Waiter` it is called `name`. `input_ns`, `infer_ns` and `output_ns` sum the compute times of its
    steps.
    """

    def __init__(self, ensemble: Ensemble, request: Request) -> None:
        self.request = request
        self.name = ensemble.name
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0
        self._ensemble = ensemble
        self._flow: EnsembleFlow[FlowTensor] = EnsembleFlow(ensemble.plan, request.requested_outputs)
        self._members: dict[int, ServedModel] = {}
        self._calls: dict[StepCall, None] = {}
        self._at_gates = RunsAtGates(ensemble.gates) if ensemble.gates else None
        # Made when a step answers without having ended, which is rare
        self._pauses: StepPauses | None = None
        # The only response of an ensemble that is not decoupled, until the run is over
        self._kept: Response | None = None
        # Whether a member differed from the one that the ensemble was loaded with, in this run or in an inner one
        self._transient = False
        self._looking = False
        self._over = False
        # Whether tensors may lie in memory of GPUs
        self._on_devices = isinstance(request.requested_outputs, dict)

    def begin(self) -> None:
        """Starts the first steps. Raises nothing."""
        try:
            self._begin()
        except Exception:
            self._break_off()

    def _begin(self) -> None:
        flow = self._flow
        try:
            self._members, self._transient = self._ensemble.find_members(flow.route.steps)
        except ServeError as error:
            flow.fail(self._told(error))
            self._look()
            return
        for model in self._members.values():
            model.reserve()
        self._on_devices |= any(model.signature.takes_devices for model in self._members.values())
        flow.begin(given_inputs(flow.route.given, self.request, self._ensemble.signature))
        self._look()

    def cancel(self) -> None:
        """The client no longer waits for the answer."""
        self.give_up(ServeError(Code.CANCELLED, f"{self.request.id_prefix}Request was cancelled"))

    def give_up(self, error: ServeError) -> None:
        self._fail(error)
        self._look()

    def has(self, request: Request) -> bool:
        return request is self.request

    def waits_for(self) -> Sequence[BlockingCall]:
        """The calls that it cannot finish without, including future ones."""
        flow, members = self._flow, self._members
        coming = [Prospect(members[step.index]) for step in flow.route.steps if members and not flow.has_begun(step)]
        return [*self._calls, *coming]

    def _look(self) -> None:
        """Does what the flow demands, until nothing is left, including demands that arise meanwhile."""
        if self._looking:
            return
        self._looking = True
        flow = self._flow
        while flow.runs or flow.responses:
            runs = flow.take_runs()
            if flow.responses:
                responses = flow.take_responses()
                over = flow.over and flow.error is None
                for number, outputs in enumerate(responses, 1):
                    self._respond(outputs, final=over and number == len(responses))
            for run in runs:
                if self._pauses is not None:
                    self._pauses.begun(run.step)
                if self._at_gates is None or self._at_gates.enter(run, self._go):
                    self._submit(run)
                elif flow.error is not None:
                    self._give_up_waiting()
        self._looking = False
        if flow.over and not self._over:
            self._end()

    def _go(self, run: StepRun[FlowTensor]) -> None:
        """A run has passed a gate where it has waited. Raises nothing: another request has called the gate."""
        try:
            self._submit(run)
            self._look()
        except Exception:
            self._break_off()

    def _submit(self, run: StepRun[FlowTensor]) -> None:
        if self._flow.error is not None:
            drop_inputs(run.inputs)
            self._ended(run)
            return
        model = self._members[run.step.index]
        route = self._flow.route
        asked: Collection[str] = route.asked[run.step.index]
        if self._on_devices:
            asked = on_devices(route.made[run.step.index], self._members, self.request.requested_outputs)
        request = step_request(run.inputs, self.request, model.signature, asked)
        call = StepCall(run, model, self.answered, self.request)
        self._calls[call] = None
        if self.request.trace is not None:
            request.trace = self.request.trace.child(model.name, model.version, request.request_start_ns)
        try:
            call.submit(request)
        except ServeError as error:
            del self._calls[call]
            self._ended(run)
            self._fail(self._told(error, run.step))

    def answered(self, call: StepCall, request: Request, response: Response) -> None:
        """A response of a step. Raises nothing."""
        if self._over:
            return
        try:
            flow, run = self._flow, call.run
            self._transient |= response.transient
            if response.error is not None:
                self._fail(self._told(response.error, run.step))
            elif not response.empty and flow.error is None:
                made, known = flow.route.made[run.step.index], len(flow.runs)
                flow.answer(run, step_outputs(made, request, response, call.model.signature))
                if self._at_gates is not None:
                    self._at_gates.follow(run, flow.runs[known:])
            if response.final:
                del self._calls[call]
                self._count(request)
                if self._pauses is not None:
                    self._pauses.forget(request)
                self._ended(run)
            self._look()
            if not response.final:
                if self._pauses is None:
                    entangled = self._ensemble.entangled
                    readers = {one: later for one, later in flow.route.followers.items() if one not in entangled}
                    self._pauses = StepPauses(self.request, self._members, readers, self._at_gates)
                    for under_way in [*(one.run for one in self._calls), *(self._at_gates or ())]:
                        self._pauses.begun(under_way.step)
                self._pauses.keep(request, run.step)
        except Exception:
            self._break_off()

    def _ended(self, run: StepRun[FlowTensor]) -> None:
        """The step's request is over, or was never submitted."""
        self._flow.end(run)
        if self._at_gates is not None:
            self._at_gates.leave(run)
        if self._pauses is not None:
            self._pauses.ended(run.step)

    def _count(self, request: Request) -> None:
        if request.compute_end_ns:
            self.input_ns += request.compute_input_end_ns - request.compute_start_ns
            self.infer_ns += request.compute_infer_end_ns - request.compute_input_end_ns
            self.output_ns += request.compute_end_ns - request.compute_infer_end_ns
        elif request.compute_start_ns:
            # The last response came before the batch was over.
            self.infer_ns += time.monotonic_ns() - request.compute_start_ns

    # The ensemble's answer

    def _respond(self, outputs: dict[str, FlowTensor], final: bool) -> None:
        signature = self._ensemble.signature
        asked = self.request.requested_outputs
        wanted = signature.outputs if asked is None else asked
        if len(outputs) < len(wanted):
            for name in wanted:
                if name not in outputs:
                    log.debug("Composing models did not output tensor %s", name)
        tensors, parameters = ensemble_outputs(outputs, signature)
        response = Response(tensors, parameters, final=final)
        if final:
            self._finish(response)
        elif signature.decoupled:
            self._ensemble.respond(self.request, response)
        elif self._kept is None:
            self._kept = response

    def _end(self) -> None:
        """Nothing is under way any more, and no final response has been sent."""
        kept, self._kept = self._kept, None
        error = self._flow.error
        if error is None and kept is None and not self._ensemble.signature.decoupled:
            text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
            error = self._told(invalid(self.request.id_prefix + text))
        if error is None:
            if kept is not None:
                kept.final = True
            self._finish(kept or Response(empty=True))
            return
        if kept is not None:
            drop_blocks(kept.outputs)
        self._close()
        self._ensemble.failed(self, error, CANCELLED if error.code is Code.CANCELLED else OTHER_FAILURE)

    def _finish(self, response: Response) -> None:
        self._close()
        response.transient = self._transient
        self._ensemble.succeeded(self)
        self._ensemble.respond(self.request, response)

    def _close(self) -> None:
        """Drops everything except the answer."""
        self._over = True
        for flowing, holds in self._flow.close():
            drop(flowing.tensor, holds)
        for model in self._members.values():
            model.release()
        self._members = {}

    # Failure

    def _told(self, error: ServeError, step: Step | None = None) -> ServeError:
        """The error in upstream's words, and the step that it is from where the words name no model."""
        text = f"in ensemble '{self._ensemble.signature.model}', {error.message}"
        if step is not None and f"'{step.model}" not in error.message:
            text += f" (step {step.index}, model '{step.model}')"
        return ServeError(error.code, text)

    def _fail(self, error: ServeError) -> None:
        if self._flow.error is not None:
            return
        self._flow.fail(error)
        self._give_up_waiting()
        for call in list(self._calls):
            call.cancel()

    def _break_off(self) -> None:
        """A fault of the server: the caller gets an error, and everything held is dropped."""
        ensemble = self._ensemble
        log.exception("a request to ensemble '%s' has failed unexpectedly", ensemble.name)
        if self._over:
            return
        self._give_up_waiting()
        self._close()
        error = internal(f"unexpected error in ensemble '{ensemble.name}'; see the server's log")
        ensemble.failed(self, error, OTHER_FAILURE)
        for call in list(self._calls):
            try:
                call.cancel()
            except Exception:
                log.exception("a step of ensemble '%s' could not be cancelled", ensemble.name)
        if self._at_gates is not None:
            self._at_gates.leave_all()

    def _give_up_waiting(self) -> None:
        for run in () if self._at_gates is None else self._at_gates.give_up():
            drop_inputs(run.inputs)
            self._flow.end(run)
            if self._pauses is not None:
                self._pauses.ended(run.step)
