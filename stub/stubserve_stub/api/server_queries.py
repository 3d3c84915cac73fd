"""Queries of a model to the server. They cannot wait for the main thread, because that thread may be asking.

They go out over the control socket, and the thread that reads it hands each answer to the thread that waits.

From `initialize` on a model asks by these functions about other models and shared memory, on any thread.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from typing import Any, Callable, Dict, Optional

from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.exceptions import TritonModelException


class ServerQueries:
    """Asks the server, on the thread that waits. `instance` is what errors name; `send` sends a control message."""

    def __init__(self, instance: str, send: Callable[..., None]) -> None:
        self._instance = instance
        # Sends a message without an answer; may be called in a finalizer
        self.send = send
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._waiting: "Dict[int, queue.SimpleQueue[Dict[str, Any]]]" = {}
        self._guard = threading.Lock()

    def ask(self, query: str, failure: str, **fields: Any) -> Any:
        """The server's answer. Raises TritonModelException that begins with `failure` if it refuses."""
        if os.getpid() != self._process:
            # Only the stub's own process has the thread that hears the answer.
            raise self.refused(failure, "a process that the model has forked cannot ask the server")
        answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        with self._guard:
            number = next(self._numbers)
            self._waiting[number] = answers
        self.send("query", number=number, query=query, **fields)
        answer = answers.get()
        if "error" in answer:
            raise self.refused(failure, answer["error"])
        return answer["value"]

    def refused(self, failure: str, reason: str) -> TritonModelException:
        """The error for a query that the server refuses, or is known to refuse."""
        return TritonModelException(
            f"{failure}: Failed to process the request for model '{self._instance}', message: {reason}"
        )

    def on_answer(self, message: Dict[str, Any]) -> None:
        """Takes an answer; on the control thread."""
        with self._guard:
            waiting = self._waiting.pop(message["number"])
        waiting.put(message)


_queries: Optional[ServerQueries] = None


def connect(queries: ServerQueries) -> None:
    global _queries
    _queries = queries


def load_model(model_name: str, config: str = "", files: Optional[Any] = None) -> None:
    """Has the server load a model, with this configuration (JSON) and these files instead of those in its folder.

    Raises TypeError for arguments of the wrong types, TritonModelException if the server refuses.
    """
    name, text = as_text(model_name), as_text(config)
    if name is None or text is None:
        raise incompatible(
            "load_model",
            "(model_name: str, config: str = '', files: object = None) -> None",
            (model_name, config, files),
        )
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
        )
    contents = {}
    for key, value in (files or {}).items():
        contents[_path(key)] = value
        _require(bytes, value)
    _ask("load_model", "Failed to load model", model=name, config=text, files=contents)


def _path(key: Any) -> str:
    """The path in a key `file:<path>`."""
    _require(str, key)
    if not key.startswith("file:"):
        raise TritonModelException(f"Failed to load model: unrecognized load parameter '{key}'.")
    path: str = key[len("file:") :]
    return path


def _require(wanted: type, value: Any) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"Object of type '{type(value).__name__}' is not an instance of '{wanted.__name__}'")


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Has the server unload a model. Raises as `load_model`."""
    name = as_text(model_name)
    if name is None or not isinstance(unload_dependents, bool):
        raise incompatible(
            "unload_model",
            "(model_name: str, unload_dependents: bool = False) -> None",
            (model_name, unload_dependents),
        )
    _ask("unload_model", "Failed to unload model", model=name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model, or this version of it, would accept a request now; calls its `is_ready` if it has one.

    Raises TypeError for arguments of the wrong types, TritonModelException for a version that is no number.
    """
    name, version = as_text(model_name), as_text(model_version)
    if name is None or version is None:
        raise incompatible(
            "is_model_ready", "(model_name: str, model_version: str = '') -> bool", (model_name, model_version)
        )
    ready: bool = _ask("is_model_ready", "Failed to check model readiness", model=name, version=version)
    return ready


def _ask(query: str, failure: str, **fields: Any) -> Any:
    if _queries is None:
        raise TritonModelException(f"{failure}: there is no server to ask before 'initialize'.")
    return _queries.ask(query, failure, **fields)


class SharedMemory:
    """Upstream's handle to a stub's region, which models use to see whether something leaks: `shared_memory`.

    Here all stubs share one arena, so its figures also change with other stubs.
    """

    def free_memory(self) -> int:
        """Bytes that are left of --shm-limit. Memory that is kept warm for the next tensors counts as used.

        Raises TritonModelException where there is no server, and in a process that the model has forked.
        """
        if _queries is None:
            raise TritonModelException("There is no shared memory outside of a server.")
        left: int = _queries.ask("memory_left", "Failed to ask how much shared memory is free")
        return left
