"""The pace of an ensemble: a fast step is paused so that it does not fill the memory with work for a slow one.

A step that answers many times is paused while the reader of the ensemble is behind, while a step that reads what it
makes waits at its gate, and while such a step has many requests under way. It goes on when none of that is so. Nobody
waits for another that waits for it: a step waits for later ones only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from stubserve.inference.request import Request
from stubserve.schedulers.ensemble.plan import Step
from stubserve.serving.ensemble_gate import RunsAtGates

# How many requests of one run to one step may be under way before the step that makes more work for it is paused
_MANY = 64


class Pace:
    """The pace of one run, whose responses go to the reader of `request`. `readers` tells who reads what a step makes.

    `at_gates` is what waits at gates, if there are any.
    """

    def __init__(
        self, request: Request, readers: Callable[[Step], Collection[Step]], at_gates: RunsAtGates | None
    ) -> None:
        self._request = request
        self._readers = readers
        self._at_gates = at_gates
        # Requests of each step that are under way or wait
        self._load: Counter[Step] = Counter()
        self._paused: dict[Request, Step] = {}

    def begun(self, step: Step) -> None:
        self._load[step] += 1

    def ended(self, step: Step) -> None:
        self._load[step] -= 1
        if self._paused:
            self.go_on()

    def keep(self, request: Request, step: Step) -> None:
        """Pauses a request of this step, which has just answered and is not over, if that is called for."""
        if self._is_ahead(step):
            request.pause()
            self._paused[request] = step
            self.go_on()

    def forget(self, request: Request) -> None:
        """A request is over."""
        self._paused.pop(request, None)

    def go_on(self) -> None:
        """Resumes what need not wait any longer."""
        stream = self._request.stream
        if stream is not None and stream.paused:
            if self.go_on not in stream.owed:
                self._request.when_read(self.go_on)
            return
        for request, step in list(self._paused.items()):
            if not self._is_ahead(step) and self._paused.pop(request, None) is not None:
                request.resume()

    def _is_ahead(self, step: Step) -> bool:
        stream = self._request.stream
        if stream is not None and stream.paused:
            return True
        at_gates = self._at_gates
        return any(
            self._load[reader] >= _MANY or (at_gates is not None and at_gates.before(reader))
            for reader in self._readers(step)
        )
