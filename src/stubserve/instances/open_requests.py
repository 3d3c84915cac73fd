"""The requests of batches that have run which senders have yet to answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor, drop_blocks

# The number of a batch, and the request's index in it
Key = tuple[int, int]


class OpenRequests:
    """The open requests of one stub. The inputs that schedulers have added to these are held as the requests' own are,
    until the end."""

    __slots__ = ("_extras", "_keys", "_requests")

    def __init__(self) -> None:
        self._requests: dict[Key, Request] = {}
        self._keys: dict[Request, Key] = {}
        self._extras: dict[Key, Sequence[Tensor]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, key: Key, request: Request, extras: Sequence[Tensor]) -> None:
        """A request stays open; the hold on its extra inputs is passed on with it."""
        self._requests[key] = request
        self._keys[request] = key
        if extras:
            self._extras[key] = extras

    def find(self, key: Key) -> Request | None:
        return self._requests.get(key)

    def key_of(self, request: Request) -> Key | None:
        return self._keys.get(request)

    def extras(self, key: Key) -> Sequence[Tensor]:
        """The inputs that a scheduler has added to this one."""
        return self._extras.get(key, ())

    def remove(self, key: Key) -> None:
        """It has had its final response."""
        del self._keys[self._requests.pop(key)]
        drop_blocks(self._extras.pop(key, ()))

    def all(self) -> Collection[Request]:
        return self._requests.values()

    def tensors(self) -> Iterator[Tensor]:
        """All that the stub was given with them."""
        for request in self._requests.values():
            yield from request.inputs
        for tensors in self._extras.values():
            yield from tensors

    def clear(self) -> list[Request]:
        """Lets go of all of them; returns the requests."""
        left = list(self._requests.values())
        for tensors in self._extras.values():
            drop_blocks(tensors)
        self._extras.clear()
        self._requests.clear()
        self._keys.clear()
        return left
