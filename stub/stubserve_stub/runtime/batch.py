"""A batch as a backend gets it: the requests of one EXECUTE message, and the memory of their tensors.

An input above INLINE_BYTES is a view of the arena, owned by its request until the batch's result reaches the parent. So
after the backend has executed

1. an output inside an input of this batch, or inside an output of a model that this one has called (a lease), is
   answered with its place there, without a copy;
2. the backend drops all objects that it was given and does not need. Inputs that are still alive are named as held, and
   an output of step 1 in held memory is copied after all.

An input is a read-only view if others read its memory, too, or if the backend writes to no inputs: then the pages stay
protected, which saves two system calls for each. A backend that can choose where it
writes its outputs asks for room (`reserve`), and outputs in it are answered from there. All other outputs are copied
once, into the stub's own segment, or into the message if they are small.

Weak references tell what is alive. The code that makes objects over an input's memory either gives the reference that
dies with the last of them (`watch`), or says that others look after the input beyond the batch (`lend`).
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import lease_of, no_memory, own_offsets
from stubserve_stub.runtime.region_batch import RegionBatch
from stubserve_stub.wire import places
from stubserve_stub.wire.arena import ArenaFull, address_of
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.messages import Entry, WireRequest, WireResponse, WireTensor
from stubserve_stub.wire.places import DEVICE_BASE, InArena, Lent, OnDevice, Place, Shared

if TYPE_CHECKING:
    from stubserve_stub.runtime.devices import DeviceMemory


class _Room:
    """A block of the stub's own segment that a backend writes outputs to. `parts` are the pieces that are outputs.

    They are given out in ascending order, up to the address `end`.
    """

    __slots__ = ("address", "end", "nbytes", "offset", "parts")

    def __init__(self, address: int, nbytes: int, offset: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.offset = offset
        self.parts: List[int] = []
        self.end = address


class Batch:
    """The requests of one batch (None for each slot that is empty), and its memory.

    `sequences` are the numbers of the requests' sequences, empty for models without implicit state. `cancelled` are the
    indices of requests whose clients are gone; another thread may replace it at any time. `regions` is None for a batch
    that does not refer to shared memory of clients; in one that does, such an input is an array instead of a place.
    """

    __slots__ = (
        "_channel",
        "_inputs",
        "_leases",
        "_lent",
        "_rooms",
        "_watched",
        "cancelled",
        "computed_ns",
        "number",
        "regions",
        "requests",
        "sequences",
    )

    def __init__(
        self,
        channel: Channel,
        number: int,
        requests: Sequence[Optional[WireRequest]],
        sequences: Sequence[int] = (),
        regions: Optional[RegionBatch] = None,
    ) -> None:
        self.number = number
        self.requests = requests
        self.sequences = sequences
        self.regions = regions
        self.cancelled: Sequence[int] = ()
        # CLOCK_MONOTONIC, 0 until then
        self.computed_ns = 0
        self._channel = channel
        # Inputs: (address, nbytes, offset) of each
        self._inputs: List[Tuple[int, int, int]] = []
        # The offsets of inputs that others look after; models may go on writing to these
        self._lent: List[int] = []
        self._watched: "List[Tuple[int, weakref.ref[Any]]]" = []
        # Leases in which outputs lie
        self._leases: "List[weakref.ref[Any]]" = []
        self._rooms: List[_Room] = []

    def computed(self) -> None:
        """The model is done. The statistics count the encoding of its answers, which follows, separately."""
        self.computed_ns = time.monotonic_ns()

    def input(self, name: str, wire: Any, writable: bool = True) -> Tuple[int, memoryview]:
        """The offset and memory of an input that is not in the message; the memory may be read-only.

        `wire` is its place as it came; from memory of a GPU it is copied, and has no offset (-1). Without `writable`
        the memory is always read-only. Raises Refusal if it lies where this stub may not read.
        """
        place = places.unpack(wire)
        if isinstance(place, OnDevice) and self._channel.devices is not None:
            # No part of the request's memory: it may be kept, and is the backend's alone.
            return -1, self.device_input(name, wire, lent=False).on_host().data
        if not isinstance(place, (InArena, Shared)):
            why = places.refusal(place) or "lies in memory that was never this stub's to read"
            raise Refusal("input '{}' {}".format(name, why))
        arena = self._channel.arena
        view = arena.view(place.offset, place.nbytes)
        if isinstance(place, Shared) or not writable:
            view = view.toreadonly()
        else:
            arena.make_writable(place.offset, place.nbytes)
        self._inputs.append((arena.address(place.offset), place.nbytes, place.offset))
        return place.offset, view

    def device_input(self, name: str, wire: Any, lent: bool = True) -> DeviceMemory:
        """The memory of an input that lies on a GPU; `lent` if more than this call looks at it. Raises Refusal."""
        place, devices = places.unpack(wire), self._channel.devices
        if not isinstance(place, OnDevice) or devices is None:
            raise Refusal("input '{}' {}".format(name, "lies in memory of a GPU, of which nobody has told"))
        try:
            memory = devices.memory_at(place)
            if not lent:
                return memory
            here = devices.on_instance_gpu(memory)
        except ValueError as wrong:
            raise Refusal("input '{}' {}".format(name, wrong)) from None
        if here is memory:
            self._inputs.append((memory.address, memory.nbytes, memory.offset))
        return here

    def watch(self, offset: int, reference: "Optional[weakref.ref[Any]]") -> None:
        """`reference` dies with the last view of the input at `offset`; None if no view is left."""
        if reference is not None and offset >= 0:
            self._watched.append((offset, reference))

    def lend(self, offset: int) -> None:
        """The input at `offset` is used beyond this batch; others say when that ends."""
        self._lent.append(offset)

    def reserve(self, nbytes: int, source: Optional[DeviceMemory] = None) -> "np.ndarray[Any, Any]":
        """Room for outputs, as an array of uint8, until the batch's result is sent. Raises ArenaFull.

        Parts that are no outputs are free then; outputs are free when they have been read.
        """
        offset = self._channel.memory.reserve(nbytes, source)
        arena = self._channel.arena
        self._rooms.append(_Room(arena.address(offset), nbytes, offset))
        return np.frombuffer(arena.view(offset, nbytes), np.uint8)

    def place(self, buffer: Any) -> Place:
        """The place of an output, given as a buffer or as a list of strings. Raises ArenaFull."""
        if not isinstance(buffer, (bytes, list)) and buffer.nbytes > INLINE_BYTES:
            given = self._given(buffer, buffer.nbytes)
            if given is not None:
                return given
        return self._channel.place(buffer)

    def place_device(self, memory: DeviceMemory, stays: bool, holder: str) -> Place:
        """As `Channel.place_device`; memory that the stub was given stays where it is."""
        if stays:
            start, end = memory.address, memory.address + memory.nbytes
            for address, nbytes, offset in self._inputs:
                if offset >= DEVICE_BASE and address <= start and end <= address + nbytes:
                    return Lent(offset + start - address, memory.nbytes, offset)
            if memory.is_lease:
                memory.wait()
                self._leases.append(weakref.ref(memory))
                return Lent(memory.offset, memory.nbytes, memory.offset)
        return self._channel.place_device(memory, stays, holder)

    def free(self, offsets: Sequence[int]) -> None:
        for room in self._rooms:
            freed = [offset for offset in offsets if offset in room.parts]
            if freed:
                room.parts = [offset for offset in room.parts if offset not in freed]
                offsets = [offset for offset in offsets if offset not in freed]
        self._channel.free(offsets)

    def take_back(self, entries: Sequence[Entry]) -> None:
        """Frees the outputs of entries that are not sent after all."""
        self.free([offset for entry in entries if isinstance(entry, tuple) for offset in own_offsets(entry[1])])

    def prepare_result(self, entries: Sequence[Entry]) -> Tuple[List[int], Sequence[Entry]]:
        """Finds the inputs that are still held, and moves outputs out of them: (held offsets, entries of the result).

        To be called under the channel's `sending`, which is kept until the result is sent: the parent has to hear that
        an input is held before it hears of its release.
        """
        held: List[int] = []
        if self._rooms:
            self._leave_rooms()
        if not (self._inputs or self._leases):
            return held, entries
        devices = self._channel.devices
        if devices is not None and any(offset >= DEVICE_BASE for _, _, offset in self._inputs):
            devices.finish()
        spans = []
        for offset, watch in self._watched:
            memory = watch()
            if memory is not None:
                held.append(offset)
                spans.append((offset, memory.nbytes))
                self._channel.hold(offset, memory)
        for _, nbytes, offset in self._inputs:
            if offset in self._lent:
                spans.append((offset, nbytes))
            elif offset not in held:
                self._channel.arena.make_read_only(offset)
        for reference in self._leases:
            lease = reference()
            if lease is not None:
                spans.append((lease.offset, lease.nbytes))
        if not spans:
            return held, entries
        return held, [self._moved(entry, spans) if isinstance(entry, tuple) else entry for entry in entries]

    def _leave_rooms(self) -> None:
        """From now on the readers free the outputs in each room."""
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            if not room.parts:
                self._channel.free([room.offset])
            elif room.parts != [room.offset]:
                self._channel.memory.split(room.offset, room.parts)

    def _given(self, buffer: Any, nbytes: int) -> Optional[Place]:
        """The place of a buffer in memory that the stub was given or has reserved, else None."""
        if self._rooms or self._inputs:
            address = address_of(buffer)
        for room in self._rooms:
            if room.address <= address and address + nbytes <= room.address + room.nbytes:
                if address < room.end:
                    return None  # it is answered with already, and whoever has that may write to it
                room.end = address + nbytes
                offset = room.offset + address - room.address
                room.parts.append(offset)
                return InArena(offset, nbytes)
        for start, length, offset in self._inputs:
            if start <= address and address + nbytes <= start + length:
                return Lent(offset + address - start, nbytes, offset)
        lease = lease_of(buffer)
        if lease is None:
            return None
        self._leases.append(weakref.ref(lease))
        return Lent(lease.offset + address_of(buffer) - lease.address, nbytes, lease.offset)

    def _moved(self, response: WireResponse, spans: List[Tuple[int, int]]) -> WireResponse:
        error, outputs, parameters = response
        moved: List[WireTensor] = []
        for name, datatype, shape, place in outputs:
            if isinstance(place, Lent) and any(at <= place.offset < at + nbytes for at, nbytes in spans):
                try:
                    place = self._copied(name, place)
                except ArenaFull as full:
                    self.free(own_offsets([*moved, *outputs[len(moved) :]]))
                    return no_memory(full)
            moved.append((name, datatype, shape, place))
        return (error, moved, parameters)

    def _copied(self, name: str, place: Lent) -> Place:
        devices = self._channel.devices
        if place.offset >= DEVICE_BASE and devices is not None:
            return devices.put(devices.memory_at(OnDevice(place.offset, place.nbytes)), "output '{}'".format(name))
        return self._channel.place(self._channel.arena.view(place.offset, place.nbytes))
