"""The requests that a stub has: those of its batches, and those that senders will answer later.

If its model answers a request through a sender, the request stays *open* after its batch, until the final response.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.instances.batch import InFlightBatch

# The number of a batch, and the request's slot in it
Key = tuple[int, int]


class UnansweredRequests(NamedTuple):
    """The requests without an answer that a dead stub leaves: those of the batch that it executed, those of batches
    that it had not begun, and the open ones.
    """

    executing: list[Request]
    waiting: list[Request]
    open: list[Request]


class StubRequests:
    """The requests of one stub. `batches` has those that it executes, by number and in the order of execution.

    Extra inputs of an open request, from a scheduler, are held until its end, as its own inputs are.
    """

    def __init__(self) -> None:
        self.batches: dict[int, InFlightBatch] = {}
        self._open: dict[Key, Request] = {}
        self._keys: dict[Request, Key] = {}
        self._extras: dict[Key, Sequence[Tensor]] = {}

    @property
    def running(self) -> tuple[int, int] | None:
        """The batch that the stub executes: (number, how many requests); None if it has none."""
        for number, batch in self.batches.items():
            return number, len(batch.work.requests)
        return None

    @property
    def is_empty(self) -> bool:
        return not self.batches and not self._open

    @property
    def open(self) -> int:
        """How many requests are open."""
        return len(self._open)

    def all(self) -> list[Request]:
        return [*(request for batch in self.batches.values() for request in batch.work.requests), *self._open.values()]

    def find(self, key: Key) -> Request | None:
        batch = self.batches.get(key[0])
        return self._open.get(key) if batch is None else batch.work.slots[key[1]]

    def key_of(self, request: Request) -> Key | None:
        """The place of a request; None if the stub does not have it."""
        key = self._keys.get(request)
        if key is None:
            for number, batch in self.batches.items():
                if request in batch.work.slots:
                    return number, batch.work.slots.index(request)
        return key

    def extras(self, key: Key) -> Sequence[Tensor]:
        batch = self.batches.get(key[0])
        if batch is None:
            return self._extras.get(key, ())
        return batch.extras[key[1]] if batch.extras is not None else ()

    def tensors(self) -> Iterator[Tensor]:
        for batch in self.batches.values():
            yield from batch.tensors()
        for request in self._open.values():
            yield from request.inputs
        for tensors in self._extras.values():
            yield from tensors

    def leave_open(self, key: Key, request: Request, extras: Sequence[Tensor]) -> None:
        """The batch of a request has run without its answer. Takes over the hold on its extra inputs."""
        self._open[key] = request
        self._keys[request] = key
        if extras:
            self._extras[key] = extras

    def answered(self, key: Key) -> None:
        """A request has had its final response, through a sender."""
        batch = self.batches.get(key[0])
        if batch is not None:
            batch.answered = batch.answered or set()
            batch.answered.add(key[1])
        else:
            del self._keys[self._open.pop(key)]
            drop_blocks(self._extras.pop(key, ()))

    def remove_all(self, number: int) -> UnansweredRequests:
        """Removes all requests. `number` is the batch that the stub said it executes; the first if it has none such."""
        executing: list[Request] = []
        waiting: list[Request] = []
        begun = number if number in self.batches else next(iter(self.batches), 0)
        for one, batch in self.batches.items():
            (executing if one <= begun else waiting).extend(batch.unanswered())
            batch.drop()
        left = UnansweredRequests(executing, waiting, list(self._open.values()))
        for tensors in self._extras.values():
            drop_blocks(tensors)
        for kept in (self.batches, self._open, self._keys, self._extras):
            kept.clear()
        return left
