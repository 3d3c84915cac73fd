"""The models that a worker knows, and each of them as its clients' requests meet it.

A description is good as long as the owner's registry is in the state in which it was given. A model that is not known
is asked for, and its requests are passed on until it is. Nothing is known of a model that answers in streams, which
HTTP's `infer` refuses, so the owner does that.
"""

from __future__ import annotations

from typing import Any

from stubserve.errors import overloaded
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.trace import Asking, ModelTracing, Sampler
from stubserve.ingress.line import Line
from stubserve.ingress.messages import MOST_DESCRIBED, Description
from stubserve.model_config.proto import ModelConfig


class Contexts(Sampler):
    """Where owners trace for others, in the place of a sampler: keeps a request's `traceparent` until it is sent."""

    def __init__(self) -> None:
        self._context: str | None = None

    def sample(self, call: Asking) -> None:
        self._context = call.trace_context()

    def take(self) -> str | None:
        context, self._context = self._context, None
        return context


class Described:
    """What is known of a model under one name and version, as requests have them: the last description."""

    __slots__ = ("number", "signature")

    def __init__(self, signature: Signature, number: int) -> None:
        self.signature = signature
        self.number = number


class RemoteModel:
    """A model of the owner's, by one description; as much of a `ServedModel` as a call of HTTP looks at.

    Its signature is that of the latest description under the same name: the one that an answer comes with.
    """

    __slots__ = ("_contexts", "_line", "described", "name", "number", "tracing", "version")

    def __init__(
        self, line: Line, name: str, version: str, described: Described, contexts: Contexts | None = None
    ) -> None:
        self._line = line
        self._contexts = contexts
        self.tracing = ModelTracing()
        self.tracing.sampler = contexts
        self.name = name
        self.version = version
        self.described = described
        self.number = described.number

    @property
    def signature(self) -> Signature:
        return self.described.signature

    def submit(self, request: Request, at_once: bool = False) -> None:
        """Raises ServeError. No answer comes before this returns."""
        context = None if self._contexts is None else self._contexts.take()
        # It was checked by the latest description.
        checked_by = self.number if self.number == self.described.number else 0
        self._line.submit(request, self.name, self.version, checked_by, context)

    def cancel(self, request: Request) -> None:
        self._line.cancel(request)


class Catalogue:
    """The models that are known. `words` are the owner's; the `state`-th is the number of its registry's state."""

    def __init__(self, words: Any, state: int, contexts: Contexts | None) -> None:
        self._contexts = contexts
        self._words = words
        self._word = state
        self._state = 0
        self._known: dict[tuple[str, str], RemoteModel] = {}
        self._latest: dict[tuple[str, str], Described] = {}
        self.line: Line

    def find(self, name: str, version: str) -> RemoteModel | None:
        """The model; None for one that is not known, which is asked for."""
        self._look()
        found = self._known.get((name, version))
        if found is None and len(self._known) < MOST_DESCRIBED:
            self.line.describe(name, version)
        return found

    def latest(self, name: str, version: str) -> RemoteModel:
        """The model as it was described last. Raises ServeError.

        For a request that was begun when the model was known, and is not submitted yet: the owner has the last word.
        """
        described = self._latest.get((name, version))
        if described is None:
            raise overloaded(f"model '{name}' is being looked up; try again")
        return RemoteModel(self.line, name, version, described, self._contexts)

    def _look(self) -> None:
        """Forgets what was true in another state of the registry."""
        if self._words[self._word] != self._state:
            self._state = self._words[self._word]
            self._known.clear()

    def on_description(self, description: Description) -> None:
        """The owner describes a model: it was asked, or an answer comes from another than the last one."""
        name, version, state, number, config, version_number, labels = description
        message = ModelConfig()
        message.ParseFromString(config)
        signature = Signature(name, version_number, message)
        signature.labels.update(labels)
        for tensor in signature.inputs.values():
            if tensor.reshape is not None:
                # Clients' shapes are checked here, and the owner makes the model's of them.
                tensor.reshape, number = None, 0
        key = (name, version)
        described = self._latest.get(key)
        if described is None:
            if len(self._latest) >= MOST_DESCRIBED:
                self._latest.clear()
            described = self._latest[key] = Described(signature, number)
        else:
            described.signature, described.number = signature, number
        self._look()
        if state == self._state and not signature.decoupled:
            self._known[key] = RemoteModel(self.line, name, version, described, self._contexts)
