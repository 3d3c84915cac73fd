"""Questions of a model to the server, which cannot wait for the main thread: it may be the one that asks.

They go out over the control socket, and the thread that reads it hands each answer to the thread that waits.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from typing import Any, Callable, Dict

from stubserve_stub.api.exceptions import TritonModelException


class Questions:
    """Questions to the server, and the threads that wait for their answers.

    `instance` is what errors name; `send` sends a control message.
    """

    def __init__(self, instance: str, send: Callable[..., None]) -> None:
        self._instance = instance
        self._send = send
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._waiting: "Dict[int, queue.SimpleQueue[Dict[str, Any]]]" = {}
        self._guard = threading.Lock()

    def ask(self, question: str, failure: str, **fields: Any) -> Any:
        """The server's answer. Raises TritonModelException that begins with `failure` if it refuses."""
        if os.getpid() != self._process:
            # Only the stub's own process has the thread that hears the answer.
            raise self.refused(failure, "a process that the model has forked cannot ask the server")
        answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()
        with self._guard:
            number = next(self._numbers)
            self._waiting[number] = answers
        self._send("ask", number=number, question=question, **fields)
        answer = answers.get()
        if "error" in answer:
            raise self.refused(failure, answer["error"])
        return answer["value"]

    def refused(self, failure: str, reason: str) -> TritonModelException:
        """The error of what the server does not do, whether it says so or is known to."""
        return TritonModelException(
            "{}: Failed to process the request for model '{}', message: {}".format(failure, self._instance, reason)
        )

    def on_told(self, message: Dict[str, Any]) -> None:
        """Takes an answer; on the control thread."""
        with self._guard:
            waiting = self._waiting.pop(message["number"])
        waiting.put(message)
