"""The calls that an ensemble waits for: made for the runs of its steps, and still to be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.schedulers.ensemble.flow import StepRun
from stubserve.serving.ensemble_tensors import FlowTensor


class StepCall(Call):
    """The request of one run of a step; `on_answer` hears its responses."""

    __slots__ = ("_on_answer", "run")

    def __init__(
        self, run: StepRun[FlowTensor], model: ServedModel, on_answer: Callable[[StepCall, Request, Response], None]
    ) -> None:
        super().__init__(model)
        self.run = run
        self._on_answer = on_answer

    def respond(self, request: Request, response: Response) -> None:
        self._on_answer(self, request, response)


class Prospect(NamedTuple):
    """A call that is still to be made, for a search for dead ends."""

    model: ServedModel
    request: Request | None = None
