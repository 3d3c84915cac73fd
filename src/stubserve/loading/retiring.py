"""Models that no longer serve: they finish their requests, and end.

Errors on the way out are logged and do not affect other models: the waiting entries always end, and the folder of a
model that was made of files is always removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from stubserve.inference.served_model import ServedModel
from stubserve.repository.candidate import Candidate
from stubserve.repository.registry import UNLOADED, Registry, VersionEntry, VersionState

log = logging.getLogger("stubserve.repository")

_MODEL_GRACE_S = 1.0


@dataclass(frozen=True, eq=False)
class Loaded:
    """The models of one load, and its candidate."""

    candidate: Candidate
    models: list[ServedModel]

    @property
    def fine(self) -> bool:
        """Whether all models serve, and with the members that they were loaded with."""
        return all(model.has_same_members() and not model.down() for model in self.models)


class Retiring:
    """All models on their way out. Stubs get `stop_timeout_s` to finalize once their requests are answered."""

    def __init__(self, registry: Registry, stop_timeout_s: float) -> None:
        self._registry = registry
        self._stop_timeout_s = stop_timeout_s
        self._tasks: dict[asyncio.Task[None], Loaded] = {}

    def begin(self, loaded: Loaded, leaving: Sequence[VersionEntry] = (), *, patient: bool = True) -> None:
        """Lets models finish their work, and end; `leaving` are the entries that wait for it.

        Unless `patient`, a model is ended if a batch takes as long as stubs have to finalize.
        """
        patience_s = 0.0 if patient else max(self._stop_timeout_s - _MODEL_GRACE_S, _MODEL_GRACE_S)
        task = asyncio.get_running_loop().create_task(self._retire(loaded, leaving, patience_s))
        self._tasks[task] = loaded
        task.add_done_callback(self._tasks.pop)

    def leaving(self) -> list[ServedModel]:
        return [model for loaded in self._tasks.values() for model in loaded.models]

    async def drain(self, timeout_s: float) -> None:
        """Waits until all are gone; ends them after `timeout_s`."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        if late:
            log.error("Exit timeout expired. Exiting immediately.")
            hurried = [self._tasks[task] for task in late]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            await asyncio.gather(*(_stop(model, _MODEL_GRACE_S) for loaded in hurried for model in loaded.models))
            await asyncio.gather(*(_remove(loaded.candidate) for loaded in hurried))

    async def _retire(self, loaded: Loaded, leaving: Sequence[VersionEntry], patience_s: float) -> None:
        name = loaded.candidate.folder.key
        agents = loaded.candidate.agents
        if agents is not None:
            await agents.unloads()
        ended = await asyncio.gather(*(self._end(model, patience_s) for model in loaded.models))
        await _remove(loaded.candidate)
        if agents is not None:
            await agents.unloaded()
        for entry in leaving:
            if self._registry.has(name, entry):
                if loaded.candidate.made:
                    self._registry.drop_version(name, entry.version)
                else:
                    self._registry.set_version(name, entry.version, VersionState.UNAVAILABLE, UNLOADED)
        for model, complete in zip(loaded.models, ended, strict=True):
            if complete:
                log.info("successfully unloaded '%s' version %d", name, model.version)

    async def _end(self, model: ServedModel, patience_s: float) -> bool:
        return await _stop(model, self._stop_timeout_s if await model.drained(patience_s) else _MODEL_GRACE_S)


async def _stop(model: ServedModel, timeout_s: float) -> bool:
    """Ends a model. Logs errors, and returns whether there were none."""
    try:
        await model.stop(timeout_s)
    except Exception:
        log.exception("failed to end '%s' version %d", model.name, model.version)
        return False
    return True


async def _remove(candidate: Candidate) -> None:
    try:
        await asyncio.to_thread(candidate.remove)
    except Exception:
        log.exception("cannot remove the folder of model '%s', which was made for a load", candidate.folder.name)
