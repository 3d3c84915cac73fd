"""Models that are built in and answer each request from a thread of its own. All but `remote` are decoupled."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any, Callable, Dict, List

from stubserve_stub.api.constants import RESPONSE_COMPLETE_FINAL, ErrorCode
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.logger import Logger
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.python.backend import PythonBackend
from stubserve_stub.backends.python.model import Model
from stubserve_stub.runtime.failure import Refusal, describe, for_log

# A waiting thread looks so often whether its client has gone
_LOOK_S = 0.1

# Sends all responses to a request but its end
Answers = Callable[[InferenceResponseSender], None]


class StreamingModel:
    """Such a model. What `answers` raises, or the function that it returns, is the last response.

    The server gives an instance a batch only while fewer than `streams` of its requests are open. So further requests
    go to the model's other instances, and wait in its queue when these are full, too.
    """

    # 0 for any number. The server learns it after `initialize`
    streams: int = 0

    def initialize(self, arguments: Dict[str, str]) -> None:
        self.config: Dict[str, Any] = json.loads(arguments["model_config"])
        self.check()

    def check(self) -> None:
        """Sets `streams`. Raises Refusal for a configuration of another model."""
        raise NotImplementedError

    def answers(self, request: InferenceRequest) -> Answers:
        raise NotImplementedError

    def execute(self, requests: List[InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                threading.Thread(target=_stream, args=(self.answers(request), sender), daemon=True).start()
            except Exception as failure:
                _end(sender, failure)


def _stream(answers: Answers, sender: InferenceResponseSender) -> None:
    """On the thread of a request: all of its answer."""
    try:
        answers(sender)
        sender.send(flags=RESPONSE_COMPLETE_FINAL)
    except TritonModelException:
        pass  # the whole batch has been answered with an error
    except Exception as failure:
        _end(sender, failure)


def _end(sender: InferenceResponseSender, failure: Exception) -> None:
    if isinstance(failure, Refusal):
        code = ErrorCode(failure.code)
        if failure.log:
            Logger.log_warn(failure.log)
    else:
        code = ErrorCode.INTERNAL
        Logger.log_error(for_log(failure))
    error = TritonError(describe(failure), code)
    with contextlib.suppress(TritonModelException):  # as above
        sender.send(InferenceResponse(error=error), RESPONSE_COMPLETE_FINAL)


def is_cancelled(sender: InferenceResponseSender, seconds: float) -> bool:
    """Sleeps, but not for long once the client has gone; whether it has."""
    end = time.monotonic() + seconds
    while not sender.is_cancelled():
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, _LOOK_S))
    return True


class StreamingBackend(PythonBackend):
    """A backend that runs one such model in place of a `model.py`."""

    model_class: Any = StreamingModel

    def model_initialize(self, model: ModelFiles) -> None:
        self._model = Model(self.model_class, __file__)
        self.methods = ("execute",)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        if not instance.decoupled:
            raise Refusal(
                f"model instance '{instance.name}' answers with any number of responses, which config.pbtxt has to "
                "say: `model_transaction_policy { decoupled: true }`"
            )
        self._begin(instance)

    def _begin(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        self.streams = self._model.streams
