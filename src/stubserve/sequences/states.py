"""Implicit states that the server keeps itself, for backends whose sequences outlive their instances.

Elsewhere the stubs keep the states (`stubserve_stub.runtime.states`). That costs the parent nothing, but a state is
gone with its stub. Here a state comes with a response, as an output that no client sees, and goes out with the
sequence's next request, as an input. Whichever instance gets that request can go on.

- A request that fails, or is lost with its instance, leaves the states as they were.
- The first request of a sequence (START) gets none: its backend begins anew.
- After END nothing is kept.
- A sequence that is idle needs no slot. Where others wait for one, the longest idle rest without (`Backlog.rest`), and
  get a slot again with their next request. So nobody keeps a place by doing nothing.

States are copied into the parent's own memory, so a dead stub's segment is free at once. Two copies a request cost some
microseconds up to 32 KiB. The bytes count against the server's limit; where there is no room for a larger state, its
request fails. So a client can begin many sequences, but not fill the machine with them.
"""

# Compiled by mypyc.
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stubserve.errors import ServeError
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Instance
from stubserve.memory.heap_account import HeapAccount
from stubserve.sequences.active import ActiveSequences
from stubserve.sequences.backlog import Backlog, Waiting
from stubserve.sequences.slots import SequenceId, SequenceSlot, Slots


class SequenceStates:
    """The states of one model's sequences, by the number of each. No state is among the outputs of `config`.

    `heap` counts the bytes, if it is set.
    """

    def __init__(self, config: Any, active: ActiveSequences, backlog: Backlog) -> None:
        self.heap: HeapAccount | None = None
        self._active = active
        self._backlog = backlog
        # By the name of the output: the input that it becomes
        self._inputs: dict[str, str] = {state.output_name: state.input_name for state in config.sequence_batching.state}
        self._kept: dict[int, Sequence[Tensor]] = {}
        # Requests that execute: their sequence and their instance
        self._given: dict[Request, tuple[int, Instance]] = {}

    def give(self, request: Request, number: int, instance: Instance) -> Sequence[Tensor]:
        """The states for a request that an instance is about to execute."""
        self._given[request] = (number, instance)
        if request.options.flags & SEQUENCE_START:
            self.drop(number)
        return self._kept.get(number, ())

    def take(self, request: Request, response: Response) -> None:
        """Takes the new states out of the answer to a request."""
        given = self._given.get(request)
        if given is None:
            return
        shown: list[Tensor] = []
        new: list[Tensor] = []
        for tensor in response.outputs:
            name = self._inputs.get(tensor.name)
            if name is None:
                shown.append(tensor)
            else:
                new.append(Tensor(name, tensor.datatype, tensor.shape, bytes(tensor.buffer)))
                drop_blocks((tensor,))
        response.outputs = shown
        if new and response.error is None:
            try:
                self._keep(given[0], new)
            except ServeError as full:
                drop_blocks(shown)
                response.outputs = []
                response.error = full
        self.done((request,))

    def _keep(self, number: int, new: Sequence[Tensor]) -> None:
        """Raises ServeError (503) if there is no room, and then keeps the old states."""
        more = _size(new) - _size(self._kept.get(number, ()))
        if self.heap is not None and more > 0:
            self.heap.take(more)
        elif self.heap is not None and more < 0:
            self.heap.give_back(-more)
        self._kept[number] = new

    def done(self, requests: Iterable[Request]) -> None:
        """These requests have been executed, well or not."""
        for request in requests:
            given = self._given.pop(request, None)
            if given is not None and request.options.flags & SEQUENCE_END:
                self.drop(given[0])

    def move(
        self,
        instance: Instance,
        slots: Iterable[SequenceSlot],
        queued: Iterable[tuple[Request, SequenceId, int]],
    ) -> None:
        """An instance is gone, with its slots: their sequences wait for others, with the requests that were queued.

        With each request its sequence, by id and number. What the instance executed will not be answered.
        """
        self.done([request for request, (_, where) in self._given.items() if where == instance])
        moved: dict[int, tuple[Waiting, list[Request]]] = {}
        for slot in slots:
            if slot.over:
                continue
            moved[slot.number] = (Waiting(slot.sequence, slot.number), [])
            self._active.end(slot)
        for request, sequence, number in queued:
            moved.setdefault(number, (Waiting(sequence, number, complete=True), []))[1].append(request)
        for slot in slots:
            if slot.number not in moved:
                self.drop(slot.number)
        for waiting, requests in moved.values():
            self._backlog.add_moved(waiting, requests)

    def part_with(self, number: int) -> Sequence[Tensor]:
        """The states of a sequence that another scheduler is to `adopt`, which they are counted for from now on."""
        return self._kept.pop(number, ())

    def part_with_waiting(self, sequence: SequenceId) -> Sequence[Tensor] | None:
        """As `part_with`, of a sequence that waits for a slot; None if requests of it do, or if it has not run."""
        waiting = self._backlog.take_without_requests(sequence)
        return None if waiting is None else self.part_with(waiting.number)

    def waiting(self) -> list[SequenceId]:
        """The sequences that wait for a slot, and may get further requests."""
        return self._backlog.open_sequences()

    def adopt(self, sequence: SequenceId, states: Sequence[Tensor]) -> None:
        """A sequence goes on from these states, unless its client has begun it anew here."""
        number = self._active.new_number()
        self._kept[number] = states
        if sequence in self._active or self._backlog.collects(sequence):
            self.drop(number)
        else:
            self._backlog.add_moved(Waiting(sequence, number))

    def make_room(self, slots: Slots, at_rest: Callable[[SequenceSlot], bool]) -> list[SequenceSlot]:
        """Has the sequences that are idle for longest rest, as many as wait for a slot; the slots that they had."""
        idle = [slot for slot in slots.used() if not slot.over and not slot.queue and at_rest(slot)]
        # Some more than wait now, so that not each newcomer has all slots looked at
        count = max(self._backlog.waiting, slots.each // 16)
        free = []
        for slot in heapq.nsmallest(count, idle, key=lambda slot: slot.last_ns):
            if not slots.is_closing(slot.instance):
                self._active.end(slot)
                self._backlog.rest(Waiting(slot.sequence, slot.number), slot.last_ns)
                free.append(slot)
        return free

    def end_idle(self, now_ns: int, log: Callable[[SequenceId], None]) -> int | None:
        """Ends the sequences that rest for too long; when to look again."""
        idle_ns = self._active.max_idle_ns
        if idle_ns is None:
            return None
        for waiting in self._backlog.take_idle(now_ns - idle_ns):
            log(waiting.sequence)
            self.drop(waiting.number)
        since_ns = self._backlog.idle_since_ns()
        return None if since_ns is None else since_ns + idle_ns

    def emptied(self, waiting: Waiting) -> None:
        """The requests of a sequence in the backlog have been answered. If it has states, it waits for the next one."""
        if waiting.number and not waiting.complete:
            self._backlog.add_moved(Waiting(waiting.sequence, waiting.number))
        else:
            self.drop(waiting.number)

    def drop(self, number: int) -> None:
        size = _size(self._kept.pop(number, ()))
        if self.heap is not None and size:
            self.heap.give_back(size)

    def close(self) -> None:
        for number in list(self._kept):
            self.drop(number)

    def __len__(self) -> int:
        return len(self._kept)


def _size(states: Iterable[Tensor]) -> int:
    return sum([tensor.nbytes for tensor in states])
