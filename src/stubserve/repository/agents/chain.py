"""Repository agents of models (`model_repository_agents`): called before a load, and told its result.

Each may refuse the load, or name another folder with the model's files. A serving model keeps that folder until it is
gone. Hooks after the load cannot change anything any more, so their errors are only logged.

    load ─▶ load_complete ─▶ unload ─▶ unload_complete
         └▶ load_fail
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stubserve.errors import ServeError, internal, invalid
from stubserve.repository.agents.process import AgentProcess
from stubserve.repository.daemon_threads import in_daemon_thread
from stubserve.repository.folder import ModelFolder
from stubserve.settings.groups import RepositorySettings

T = TypeVar("T")

log = logging.getLogger("stubserve.repository")


class NewFolder:
    """A folder that is removed with its last reference."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="stubserve-agent-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class _AskedAgent:
    """One agent of a model that was called for `folder`."""

    name: str
    parameters: Mapping[str, str]
    folder: Path
    new_folder: NewFolder


class Agents:
    """The agents of a server. Those written in Python are in `directory`."""

    def __init__(self, settings: RepositorySettings) -> None:
        self._settings = settings
        self._processes: dict[str, AgentProcess] = {}
        self._guard = threading.Lock()
        self._runs = itertools.count(1)

    async def load(
        self, folder: ModelFolder, agents: Iterable[Any], read: Callable[[ModelFolder], T]
    ) -> tuple[T, Chain]:
        """Calls the agents of a model's configuration; `read` gets the folder that replaces the model's own.

        Returns the result of `read`, and the chain to tell about the load. Raises ServeError.
        """
        chain = Chain(self, next(self._runs), folder.name)

        def ask() -> T:
            try:
                return read(chain.load(folder, agents))
            except BaseException:
                chain.call_hook("load_fail")
                raise

        return await in_daemon_thread(ask), chain

    def call(self, asked: _AskedAgent, hook: str, run: int, model: str) -> Path | None:
        """Runs a hook of an agent, and returns its folder. Raises ServeError. Blocks."""
        directory = self._settings.agent_directory
        if is_built_in(asked.name, directory):
            if hook == "load":
                check_digests(asked.folder, asked.parameters)
            return None
        with self._guard:
            process = self._processes.setdefault(asked.name, AgentProcess(asked.name, directory))
        folder = process.call(
            hook=hook,
            run=run,
            name=model,
            folder=str(asked.folder),
            parameters=dict(asked.parameters),
            new_folder=str(asked.new_folder.path),
        )
        return None if folder is None else Path(folder)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()


class Chain:
    """The agents of one load of a model, from before it until the model is gone."""

    def __init__(self, agents: Agents, run: int, model: str) -> None:
        self._agents = agents
        self._run = run
        self._model = model
        self._asked: list[_AskedAgent] = []
        self.loaded = False

    def load(self, folder: ModelFolder, agents: Iterable[Any]) -> ModelFolder:
        """The folder for the model's files. Raises ServeError. Blocks."""
        for agent in agents:
            asked = _AskedAgent(agent.name, dict(agent.parameters), folder.path, NewFolder())
            self._asked.append(asked)
            found = self._agents.call(asked, "load", self._run, self._model)
            if found is not None:
                if not found.is_absolute() or not found.is_dir():
                    raise internal(
                        f"repository agent '{agent.name}' has relocated the model to {found}: no such folder"
                    )
                folder = ModelFolder(
                    folder.name, found, folder.repository, folder.namespace, (folder.held, asked.new_folder), True
                )
        return folder

    def call_hook(self, hook: str) -> None:
        """Calls a hook of all agents; errors are logged. Blocks."""
        for asked in self._asked:
            try:
                self._agents.call(asked, hook, self._run, self._model)
            except ServeError as error:
                log.error("model '%s', %s: %s", self._model, hook, error)

    async def succeeded(self) -> None:
        self.loaded = True
        await in_daemon_thread(lambda: self.call_hook("load_complete"))

    async def failed(self) -> None:
        await in_daemon_thread(lambda: self.call_hook("load_fail"))

    async def unloads(self) -> None:
        if self.loaded:
            await in_daemon_thread(lambda: self.call_hook("unload"))

    async def unloaded(self) -> None:
        if self.loaded:
            self.loaded = False
            await in_daemon_thread(lambda: self.call_hook("unload_complete"))


# The built-in agent, as in upstream's container: it has parameters `MD5:<file within the model's folder>`.
_CHECKSUM = "checksum"
_CHUNK = 1 << 20


def is_built_in(name: str, directory: Path) -> bool:
    """Whether the agent of this name is the built-in one, which an agent of one's own in `directory` replaces."""
    return name == _CHECKSUM and not (directory / name / "agent.py").is_file()


def check_digests(folder: Path, parameters: Mapping[str, str]) -> None:
    """Raises ServeError that names the first file with another digest."""
    for key, expected in parameters.items():
        algorithm, colon, path = key.partition(":")
        if algorithm != "MD5" or not colon or not path:
            raise invalid(f"repository agent 'checksum' has parameters MD5:<file>. Got '{key}'")
        file = folder / path.lstrip("/")
        if not file.resolve().is_relative_to(folder.resolve()):
            raise invalid(f"repository agent 'checksum': '{path}' is outside of the model's folder")
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with file.open("rb") as content:
                while piece := content.read(_CHUNK):
                    digest.update(piece)
        except OSError as error:
            raise internal(f"Failed to read file {file} for its MD5 hash: {error.strerror}") from None
        found = digest.hexdigest()
        if found != expected.strip().lower():
            raise invalid(f"Mismatched MD5 hash for file {path}, expect {expected}, got {found}")
