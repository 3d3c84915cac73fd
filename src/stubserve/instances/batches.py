"""The batches that a stub has, in the order in which it executes them."""

from __future__ import annotations

from collections.abc import Iterator

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor
from stubserve.instances.batch import Batch
from stubserve.instances.open_requests import Key
from stubserve.memory.server_memory import Memory


class Batches:
    """The batches of one stub, by their numbers. `memory` is the server's, which counts the stubs that have any."""

    __slots__ = ("_batches", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._batches: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, number: int, batch: Batch) -> None:
        """The stub has been handed one."""
        if not self._batches:
            self._memory.stubs_at_work += 1
        self._batches[number] = batch

    def find(self, number: int) -> Batch | None:
        return self._batches.get(number)

    def __getitem__(self, number: int) -> Batch:
        """Raises KeyError."""
        return self._batches[number]

    def remove(self, number: int) -> None:
        """It has been executed."""
        del self._batches[number]
        if not self._batches:
            self._memory.stubs_at_work -= 1

    @property
    def running(self) -> tuple[int, int] | None:
        """The one that the stub executes: (number, how many requests); None if it has none."""
        for number, batch in self._batches.items():
            return number, len(batch.work.requests)
        return None

    def requests(self) -> list[Request]:
        """All of their requests."""
        return [request for batch in self._batches.values() for request in batch.work.requests]

    def key_of(self, request: Request) -> Key | None:
        """Where a request is; None where it is in none of them."""
        for number, batch in self._batches.items():
            if request in batch.work.slots:
                return number, batch.work.slots.index(request)
        return None

    def tensors(self) -> Iterator[Tensor]:
        """All that the stub was given with them."""
        for batch in self._batches.values():
            yield from batch.tensors()

    def clear(self) -> list[Request]:
        """The stub has none of them any more; returns the requests that have no answer."""
        unanswered: list[Request] = []
        for batch in self._batches.values():
            unanswered.extend(batch.unanswered())
            batch.drop()
        if self._batches:
            self._batches.clear()
            self._memory.stubs_at_work -= 1
        return unanswered
