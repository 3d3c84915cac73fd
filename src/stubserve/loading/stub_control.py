"""Model control as the models of one load have it: what they ask for is asked for in the turn of that load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stubserve.loading.turns import Turn


class TurnControl(Protocol):
    """Loads and unloads in turns; `asked_in` is the turn of the load whose stub asks. Both raise ServeError."""

    async def load(
        self, name: str, config: str | None, files: Mapping[str, bytes] | None, asked_in: Turn | None
    ) -> None: ...

    async def unload(self, name: str, dependents: bool, asked_in: Turn | None) -> None: ...


class StubControl:
    """For the stubs of one load, whose turn it is."""

    def __init__(self, control: TurnControl, turn: Turn) -> None:
        self._control = control
        self._turn = turn

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        await self._control.load(name, config, files, self._turn)

    async def unload(self, name: str, dependents: bool = False) -> None:
        await self._control.unload(name, dependents, self._turn)
