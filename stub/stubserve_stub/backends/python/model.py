"""The model as the stub sees it: the import of `model.py`, its class, and the life of the class's one object.

asyncio is imported with the first coroutine, because it takes 7 MiB of a stub (it imports OpenSSL).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.model_config import ModelConfig
from stubserve_stub.runtime.failure import Refusal, keep_sources

_CONTRACT = ("auto_complete_config", "initialize", "execute", "is_ready", "finalize")


class ContractBroken(Refusal):
    """The model did something that its contract forbids."""


class EventLoopThread:
    """The one event loop on which all coroutines of a model run; started when the first one appears."""

    def __init__(self) -> None:
        self._loop: "Optional[asyncio.AbstractEventLoop]" = None
        self._stopped = False
        self._starting = threading.Lock()

    def run(self, coroutine: Any) -> Any:
        return self.submit(coroutine).result()

    def submit(self, coroutine: Any) -> Any:
        """Starts a coroutine on the loop's thread, and returns its concurrent future."""
        import asyncio

        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._run_loop, args=(self._loop,), name="stubserve-asyncio", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run_loop(self, loop: "asyncio.AbstractEventLoop") -> None:
        # A coroutine may stop the loop, and so may SystemExit and KeyboardInterrupt. Others still wait for the loop.
        while not self._stopped:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the loop's next turn tells the waiting thread
                loop.run_forever()
        loop.close()

    def stop(self) -> None:
        self._stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self._loop.call_soon_threadsafe(self._loop.stop)


def raised_by(future: Any) -> Optional[BaseException]:
    """The exception of a coroutine with a future that is done; CancelledError if it was cancelled."""
    try:
        raised: Optional[BaseException] = future.exception()
    except Exception as cancelled:
        return cancelled.with_traceback(None)
    return raised


def import_model(model_file: str, module: str, paths: Sequence[str]) -> Any:
    """Imports a model's file as upstream does and returns its `TritonPythonModel` class.

    A model's own file is imported as `<version>.<file>`: with the model's folder among the `paths`, which are appended
    to `sys.path`, the version folder is a namespace package, so both `import helper` and `from . import helper` find
    files beside the model. A backend's file is a plain module. Raises what its top level raises, and AttributeError
    without the class.
    """
    if not os.path.isfile(model_file):
        raise TritonModelException(f"Python model file not found in '{model_file}'")
    sys.path.extend(paths)
    # Not importlib.import_module: its frames would show in the text of an error, unlike upstream's.
    __import__(module)
    keep_sources(paths)
    return sys.modules[module].TritonPythonModel


class Model:
    def __init__(self, model_class: Any, path: str) -> None:
        self._class = model_class
        self._path = path
        self._object: Any = None
        # The model's own function. If it returns a coroutine, `wait` or `start` runs that.
        self.execute: Callable[[List[Any]], Any] = self._cannot_execute
        self._loop = EventLoopThread()

    def another(self) -> Model:
        """One with the same class, for an instance."""
        return Model(self._class, self._path)

    @property
    def methods(self) -> List[str]:
        return [name for name in _CONTRACT if hasattr(self._class, name)]

    @property
    def completes_config(self) -> bool:
        return hasattr(self._class, "auto_complete_config")

    def complete_config(self, model_name: str, config_json: str) -> str:
        """Runs `auto_complete_config`; JSON text both ways."""
        completed = self._class.auto_complete_config(ModelConfig(config_json))
        if not isinstance(completed, ModelConfig):
            raise ContractBroken(
                f"auto_complete_config function in model '{model_name}' must return a valid pb.ModelConfig object."
            )
        return completed._to_json()

    def initialize(self, arguments: Dict[str, str]) -> None:
        self._object = self._class()
        if hasattr(self._object, "initialize"):
            self._object.initialize(arguments)
        self.execute = getattr(self._object, "execute", self._cannot_execute)

    @property
    def streams(self) -> int:
        """How many streams a model that is built in may have under way, 0 for any number."""
        number: int = self._object.streams
        return number

    @property
    def checks_readiness(self) -> bool:
        return hasattr(self._object, "is_ready")

    def is_ready(self) -> bool:
        """The answer of `is_ready`, sync or async. Raises what it raises, and TritonModelException for other types."""
        answer = self._object.is_ready()
        if inspect.isawaitable(answer):
            answer = self._loop.run(answer)
        if not isinstance(answer, bool):
            raise TritonModelException("is_ready() must return a boolean value")
        return answer

    def _cannot_execute(self, requests: List[Any]) -> Any:
        raise ContractBroken(f"Python model {self._path} does not implement `execute` method.")

    def wait(self, result: Any) -> Any:
        """The result of `execute`; a coroutine is run to its end on the model's event loop."""
        return self._loop.run(result) if isinstance(result, Coroutine) else result

    def start(self, instance: str, result: Any) -> Optional["concurrent.futures.Future[Any]"]:
        """Starts the coroutine that a decoupled model's `execute` returned. Its future may outlive many batches.

        Raises ContractBroken for other results than None.
        """
        if isinstance(result, Coroutine):
            future: "concurrent.futures.Future[Any]" = self._loop.submit(result)
            return future
        if result is not None:
            raise ContractBroken(
                f"Python model '{instance}' is using the decoupled mode and the execute function must return None."
            )
        return None

    def finalize(self) -> None:
        self._loop.stop()
        if hasattr(self._object, "finalize"):
            self._object.finalize()
