"""How a stub comes to serve its model: stage by stage, over the control socket.

The stub imports its model ("imported"). Then it either completes the model's configuration and ends ("completed"), or
initializes the model ("ready"). A failed stage reports its reason ("failed"). If the stub dies instead, the error has
its cause of death and the end of its stderr. No stage has a time limit, as upstream has none (a model may load for an
hour); a long stage is mentioned in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stubserve.environments.environment import Environment
from stubserve.errors import internal
from stubserve.instances.death import unhealthy
from stubserve.instances.stub_process import Health, StubProcess

log = logging.getLogger("stubserve.instances")

_PATIENCE_S = 30.0


class Handshake:
    """The handshake of one stub. `facts` came with "imported".

    `checks_readiness`: the model has `is_ready`. `streams`: so many requests may be open, 0 for any number.
    """

    def __init__(self, process: StubProcess, environment: Environment, health: Health) -> None:
        self.facts: dict[str, Any] = {}
        self.checks_readiness = False
        self.streams = 0
        self._process = process
        self._environment = environment
        self._health = health
        # The stub's messages about stages; None when the stub is gone
        self._stages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._death = ""
        self._died_while = ""

    async def imported(self) -> bool:
        """Waits for the import. Returns whether the model's class has `auto_complete_config`. Raises ServeError."""
        self.facts = await self._stage("imported", "importing its model")
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
        answer = await self._stage("completed", "in auto_complete_config")
        completed: str = answer["config"]
        return completed

    async def initialize(self, instance: str, arguments: dict[str, str], outputs: list[str], decoupled: bool) -> None:
        """Initializes the model; after that the stub takes batches. Raises ServeError.

        With the completed configuration, the instance may have another name than at the start of the stub.
        """
        self._process.rename(instance)
        self._process.send(
            "initialize",
            instance=instance,
            arguments=arguments,
            outputs=outputs,
            decoupled=decoupled,
        )
        answer = await self._stage("ready", "in initialize")
        self.checks_readiness = answer["checks_readiness"]
        self.streams = answer["streams"]

    def on_message(self, message: dict[str, Any]) -> None:
        self._stages.put_nowait(message)

    def on_death(self, cause: str) -> None:
        """The stub is gone, and the code that waits for a stage gets an error."""
        self._death = cause
        self._died_while = self._health.state()[0]  # its segment may soon belong to another stub
        self._stages.put_nowait(None)

    async def _stage(self, kind: str, doing: str) -> dict[str, Any]:
        process = self._process
        mention = asyncio.get_running_loop().create_task(self._mention(doing))
        try:
            # Without `wait_for`: before Python 3.12 it may return although it was cancelled, and the load would go on.
            message = await self._stages.get()
        finally:
            mention.cancel()
        if message is None:
            tail = process.stderr_text()
            if self._died_while == "booting":
                # The model is not the cause: its code was not reached.
                from stubserve.environments.probe import explain  # not at the top: failures alone need it

                cause = f"{self._death} (pid {process.pid})"
                cause = await asyncio.to_thread(explain, self._environment, cause, tail)
                raise internal(f"Stub process '{process.name}' cannot be started: {cause}")
            error = unhealthy(process.name, f"{self._death} while {doing}", process.pid)
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
            log.warning(
                "stub '%s' (pid %d) has been %s for %.0f s", self._process.name, self._process.pid, doing, waited
            )
