"""A worker's memory: the heap of its own segment, against what the owner has granted it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import ArenaFull, Grant, NotGranted

from stubserve.errors import overloaded, unavailable
from stubserve.ingress.control import Control
from stubserve.instances.memory import IngressMemory

T = TypeVar("T")

# What it asks for at least, and keeps although it does not use it: it would have to ask again.
_GRAIN = 4 << 20
_RETAIN = 128 << 20


class WorkerMemory(IngressMemory):
    """That of one of `workers`, who together keep as much free memory warm as a server without workers does."""

    def __init__(self, arena: Arena, own: int, grant: Grant, control: Control, workers: int) -> None:
        retain = min(_RETAIN, arena.limit // 8) // workers
        super().__init__(arena, Allocator(arena, own, retain))
        self._grant = grant
        self._control = control
        self._grain = min(_GRAIN, arena.limit // (64 * workers))
        control.handle("give_back", self._give_back)
        control.handle("yield", self._yield)
        # Hears of inputs that the owner has read
        self.on_freed: Callable[[list[int]], None] = lambda offsets: None

    def _with_room(self, act: Callable[[int], T], nbytes: int) -> T:
        while True:
            try:
                return act(nbytes)
            except NotGranted as short:
                granted, refusal = self._control.ask_for_memory(short.nbytes, max(short.nbytes, self._grain))
            except ArenaFull as full:
                granted, refusal = 0, str(full)
            self._grant.slack += granted
            if refusal and not self._make_room(nbytes):
                raise (unavailable if nbytes > self.arena.limit else overloaded)(refusal)

    def _make_room(self, nbytes: int) -> bool:
        """Takes memory from what is only kept warm, and from who is slow; whether there is more now."""
        if nbytes > self.arena.limit:
            return False
        slack = self._grant.slack
        self.ingress.trim()
        return self._grant.slack > slack or self.make_room()

    def _free(self, block: Any) -> None:
        super()._free(block)
        surplus = self._grant.slack - 2 * self._grain
        if surplus > 0:
            self._return(surplus + self._grain, asked=False)

    def _give_back(self, message: dict[str, Any]) -> None:
        """Others need memory."""
        self.on_freed(message["frees"])
        self.ingress.trim()
        self._return(self._grant.slack, asked=True)

    def _yield(self, message: dict[str, Any]) -> None:
        """Others need memory, and nobody has any to spare: who is slow gives way."""
        gave = self.make_room()
        self.ingress.trim()
        self._return(self._grant.slack, asked=False)
        self._control.send("yielded", gave=gave)

    def _return(self, nbytes: int, asked: bool) -> None:
        self._grant.slack -= nbytes
        self._control.send("returned", nbytes=nbytes, asked=asked)
