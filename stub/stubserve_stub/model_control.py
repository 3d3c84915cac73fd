"""`load_model`, `unload_model`, `is_model_ready`: what a model asks the server about other models.

Questions and answers go over the control socket, so they may be asked from `initialize` on, by any thread, while the
main thread is in `execute`.
"""

from __future__ import annotations

import itertools
import queue
import threading
from typing import TYPE_CHECKING, Any, Dict, Optional

from stubserve_stub.arguments import as_text, incompatible
from stubserve_stub.exceptions import TritonModelException

if TYPE_CHECKING:
    # What it imports, msgpack, is not there where only the public module is wanted.
    from stubserve_stub.control import Control


class _Questions:
    """Questions to the server, and who waits for which answer."""

    def __init__(self, control: Control, instance: str) -> None:
        self._control = control
        self._instance = instance
        self._numbers = itertools.count(1)
        self._waiting: "Dict[int, queue.SimpleQueue[Dict[str, Any]]]" = {}
        self._guard = threading.Lock()
        control.handle("told", self._on_told)

    def ask(self, question: str, failure: str, **fields: Any) -> Any:
        """The server's answer. Raises TritonModelException that begins with `failure` if it refuses."""
        answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        with self._guard:
            number = next(self._numbers)
            self._waiting[number] = answers
        self._control.send("ask", number=number, question=question, **fields)
        answer = answers.get()
        if "error" in answer:
            raise TritonModelException(
                "{}: Failed to process the request for model '{}', message: {}".format(
                    failure, self._instance, answer["error"]
                )
            )
        return answer["value"]

    def _on_told(self, message: Dict[str, Any]) -> None:
        with self._guard:
            waiting = self._waiting.pop(message["number"])
        waiting.put(message)


_questions: Optional[_Questions] = None


def connect(control: Control, instance: str) -> None:
    """From now on the model may ask."""
    global _questions
    _questions = _Questions(control, instance)


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
            "failed to load model '{}', files should be a dictionary of file paths and file contents".format(name)
        )
    _ask("load_model", "Failed to load model", model=name, config=text, files=files or {})


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
    """Whether a model, or this version of it, would take a request now; asks its `is_ready` if it has one.

    Raises TypeError for arguments of the wrong types, TritonModelException for a version that is no number.
    """
    name, version = as_text(model_name), as_text(model_version)
    if name is None or version is None:
        raise incompatible(
            "is_model_ready", "(model_name: str, model_version: str = '') -> bool", (model_name, model_version)
        )
    ready: bool = _ask("is_model_ready", "Failed to check model readiness", model=name, version=version)
    return ready


def _ask(question: str, failure: str, **fields: Any) -> Any:
    if _questions is None:
        raise TritonModelException("{}: there is no server to ask before 'initialize'.".format(failure))
    return _questions.ask(question, failure, **fields)
