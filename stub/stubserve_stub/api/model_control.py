"""`load_model`, `unload_model`, `is_model_ready`: what a model asks the server about other models.

They may be asked from `initialize` on, by any thread, while the main thread is in `execute`.
"""

from __future__ import annotations

from typing import Any, Optional

from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.questions import Questions

_questions: Optional[Questions] = None


def connect(questions: Questions) -> None:
    """From now on the model may ask."""
    global _questions
    _questions = questions


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
    contents = {_path(key): _content(value) for key, value in (files or {}).items()}
    _ask("load_model", "Failed to load model", model=name, config=text, files=contents)


def _path(key: Any) -> str:
    """The path in a key `file:<path>`."""
    if not isinstance(key, str):
        raise _not_a("str", key)
    if not key.startswith("file:"):
        raise TritonModelException("Failed to load model: unrecognized load parameter '{}'.".format(key))
    return key[len("file:") :]


def _content(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _not_a("bytes", value)
    return value


def _not_a(wanted: str, value: Any) -> TypeError:
    return TypeError("Object of type '{}' is not an instance of '{}'".format(type(value).__name__, wanted))


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
