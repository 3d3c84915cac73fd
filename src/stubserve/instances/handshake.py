"""How a stub comes to serve its model: stage by stage, over the control socket.

The stub imports its model ("imported"). Then it either completes the model's configuration and ends ("completed"), or
initializes the model ("ready") in each of its seats. A failed stage reports its reason ("failed"). If the stub dies
instead, the error has its cause of death and the end of its stderr. No stage has a time limit, as upstream has none (a
model may load for an hour); a long stage is mentioned in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stubserve.environments.environment import Environment
from stubserve.errors import internal
from stubserve.instances.death import unhealthy
from stubserve.instances.stub_process import SeatLine, StubProcess

log = logging.getLogger("stubserve.instances")

_PATIENCE_S = 30.0


class Stages:
    """The stages of a stub, or of one seat in it, whose line is `seat`."""

    def __init__(self, process: StubProcess, environment: Environment, seat: SeatLine | None = None) -> None:
        self._process = process
        self._environment = environment
        self._line = process if seat is None else seat
        # Until the stub has got so far that a failure is the model's
        self._is_booting = seat is None
        # The stub's messages about stages; None when the stub is gone
        self._stages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._death = ""

    def on_message(self, message: dict[str, Any]) -> None:
        if message["kind"] == "loading":
            self._is_booting = False
        else:
            self._stages.put_nowait(message)

    def on_death(self, cause: str) -> None:
        """The stub is gone, and the code that waits for a stage gets an error."""
        self._death = cause
        self._stages.put_nowait(None)

    async def wait(self, kind: str, doing: str) -> dict[str, Any]:
        mention = asyncio.get_running_loop().create_task(self._mention(doing))
        try:
            # Without `wait_for`: before Python 3.12 it may return although it was cancelled, and the load would go on.
            message = await self._stages.get()
        finally:
            mention.cancel()
        if message is None:
            process = self._process
            tail = process.stderr_text()
            if self._is_booting:
                # The model is not the cause: its code was not reached.
                from stubserve.environments.probe import explain  # not at the top: failures alone need it

                cause = f"{self._death} (pid {process.pid})"
                cause = await asyncio.to_thread(explain, self._environment, cause, tail)
                raise internal(f"Stub process '{process.name}' cannot be started: {cause}")
            error = unhealthy(self._line.name, f"{self._death} while {doing}", process.pid)
            raise internal(error.message + (f" Its stderr ends with:\n{tail}" if tail else ""))
        if message["kind"] == "failed":
            error = internal(message["error"])
            error.log_message = message["log"]
            raise error
        assert message["kind"] == kind, message
        return message

    async def _mention(self, doing: str) -> None:
        waited = 0.0
        while True:
            await asyncio.sleep(_PATIENCE_S)
            waited += _PATIENCE_S
            log.warning("stub '%s' (pid %d) has been %s for %.0f s", self._line.name, self._process.pid, doing, waited)


class Handshake(Stages):
    """The stages of a stub until it takes instances. `facts` came with "imported"."""

    def __init__(self, process: StubProcess, environment: Environment) -> None:
        super().__init__(process, environment)
        self.facts: dict[str, Any] = {}

    async def imported(self) -> bool:
        """Waits for the import. Returns whether the model's class has `auto_complete_config`. Raises ServeError."""
        self.facts = await self.wait("imported", "importing its model")
        return bool(self.facts["completes_config"])

    @property
    def serves_after_completion(self) -> bool:
        """Whether the stub goes on after it has completed a configuration. Known once it has imported."""
        return bool(self.facts.get("serves_after_completion"))

    async def complete(self, model: str, config_json: str) -> str:
        """Lets the model complete its configuration (JSON in, JSON out). Raises ServeError.

        After that the stub ends, unless it `serves_after_completion`.
        """
        self._process.send("complete", model=model, config=config_json)
        answer = await self.wait("completed", "in auto_complete_config")
        completed: str = answer["config"]
        return completed
