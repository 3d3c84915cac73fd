"""Outputs: their responses, the memory for a stub's own, and leases of other stubs' outputs."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import strings
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import ArenaFull, bytes_at
from stubserve_stub.wire.budget import NotGranted
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.places import DEVICE_BASE, InArena, InRegion, OnDevice, Place
from stubserve_stub.wire.stub_arena import StubArena

if TYPE_CHECKING:
    # These import msgpack, which is missing where only the public module is wanted.
    from stubserve_stub.runtime.control import Line
    from stubserve_stub.runtime.devices import DeviceMemory
    from stubserve_stub.wire.messages import WireResponse, WireTensor

# Writes an output, given by name and buffer, and returns its place; None where its client names no region for it, and
# for a small one, which the server writes. Raises Refusal if there is no room.
RegionWriter = Callable[[str, Any], Optional[InRegion]]


class InlinePlacer:
    """Places tensors without an arena: each stays in its message."""

    # As `Channel.devices`
    devices = None

    def place(self, buffer: Any) -> bytes:
        """The bytes of a contiguous buffer, or of a list of strings."""
        if isinstance(buffer, list):
            return strings.join(buffer)
        return buffer if isinstance(buffer, bytes) else buffer.tobytes()

    def place_device(self, memory: DeviceMemory, stays: bool, holder: str) -> bytes:
        """The bytes of memory of a GPU."""
        return memory.tobytes()

    def free(self, offsets: Sequence[int]) -> None:
        """Does nothing: `place` takes no memory."""


def failed(message: str, code: int) -> WireResponse:
    return ((message, code), (), None)


def no_memory(full: ArenaFull) -> WireResponse:
    """The response instead of one with outputs that find no memory."""
    return failed(str(full), full.code)


def own_offsets(outputs: Sequence[WireTensor]) -> List[int]:
    """The offsets of those outputs that lie in memory of this stub's own."""
    return [place.offset for _, _, _, place in outputs if isinstance(place, (InArena, OnDevice))]


def response_of(
    outputs: Iterable[Tuple[str, int, Sequence[int], Any]],
    parameters: Optional[Dict[str, Any]],
    placer: Any,
    in_regions: Optional[RegionWriter] = None,
) -> WireResponse:
    """The response with these outputs: name, data type, shape, and a buffer, a list of strings, or a place.

    `placer` places and frees memory; `in_regions` writes outputs into regions of the client. Where one of the two
    refuses, the response is an error.
    """
    placed: List[WireTensor] = []
    try:
        for name, datatype, shape, buffer in outputs:
            place: Optional[Place] = None
            small = type(buffer) is bytes and len(buffer) <= INLINE_BYTES
            if small or isinstance(buffer, (InArena, InRegion, OnDevice)):
                place = buffer
            elif in_regions is not None:
                place = in_regions(name, buffer)
            placed.append((name, datatype, shape, placer.place(buffer) if place is None else place))
    except BaseException as error:
        placer.free(own_offsets(placed))
        if isinstance(error, (ArenaFull, Refusal)):
            return failed(str(error), error.code)
        raise
    return (None, placed, parameters)


# A stub asks for at least so much, and keeps so much unused, because it would have to ask again.
_GRAIN = 4 << 20


class OutputMemory:
    """The memory of one stub's outputs: its own segment's heap, against what the server has granted it.

    Memory that is used again and again costs no message. A stub that needs more than its grant asks the server, which
    may first have to ask other stubs for theirs, and waits for the answer. It gives unused memory back: by itself if it
    is much, and all of it when the server asks, because others need memory or the stub is idle. The control thread does
    the latter, because the main thread may be in `execute` for long.

    A block is usually one output. A block with the outputs of several requests that were computed together is `split`:
    each part is freed by itself, and the last part frees the block.

    Until `connect` there is only the first grant of `arena.grant`. Safe on any thread.
    """

    def __init__(self, arena: StubArena) -> None:
        self._arena = arena
        self._retain = min(64 << 20, arena.limit // 16)
        self._grain = min(_GRAIN, arena.limit // 64)
        self._allocator = Allocator(arena, arena.own, self._retain)
        self._guard = threading.Lock()
        # The parts of split blocks: a shared list with their block and the number of its parts that are left
        self._parts: Dict[int, List[int]] = {}
        self._control: Optional[Line] = None
        # Takes back blocks in pools of GPU memory, by their offsets; there are none before it is set
        self.free_on_device: Callable[[int], None] = lambda offset: None
        # Is told of a block (address and size) that a GPU is about to copy to
        self.pin: Callable[[DeviceMemory, int, int], None] = lambda memory, address, nbytes: None
        # One thread asks at a time; the answers of the server
        self._asking = threading.Lock()
        self._answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()

    def connect(self, control: Line) -> None:
        """Lets the stub ask the server for memory, and the server ask for it, from now on."""
        self._control = control
        control.handle("granted", self._answers.put)
        control.handle("give_back", lambda message: self.give_back(message["frees"]))

    def renew_locks(self) -> None:
        """For a process forked from the stub: another thread may have held a lock at the fork."""
        self._guard, self._asking = threading.Lock(), threading.Lock()

    @property
    def live_blocks(self) -> int:
        """How many outputs the server has not freed."""
        return self._allocator.live_blocks

    def place(self, data: Any) -> InArena:
        """Copies contiguous bytes into the stub's segment. Raises ArenaFull."""
        source = memoryview(data).cast("B")
        offset = self.reserve(source.nbytes)
        self._arena.view(offset, source.nbytes)[:] = source
        return InArena(offset, source.nbytes)

    def place_device(self, memory: DeviceMemory) -> InArena:
        """Copies memory of a GPU into the stub's segment. Raises ArenaFull, DriverError."""
        offset = self.reserve(memory.nbytes, memory)
        try:
            memory.copy_to_host(self._arena.address(offset))
        except BaseException:
            self.free([offset])
            raise
        return InArena(offset, memory.nbytes)

    def reserve(self, nbytes: int, source: Optional[DeviceMemory] = None) -> int:
        """The offset of room in the stub's segment for an output that is still to be written. Raises ArenaFull.

        `source` is what the output comes down from, if that is a GPU.
        """
        while True:
            try:
                with self._guard:
                    offset = self._allocator.allocate(nbytes)
                break
            except NotGranted as short:
                missing = short.nbytes
            self._get(missing)
        if source is not None:
            self.pin(source, self._arena.address(offset), self._allocator.committed(offset))
        return offset

    def split(self, block: int, parts: Sequence[int]) -> None:
        """Has a block be freed in parts, by the offsets at which they begin, all different."""
        shared = [block, len(parts)]
        with self._guard:
            for part in parts:
                self._parts[part] = shared

    def free(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs."""
        if not offsets:
            return
        grant = self._arena.grant
        with self._guard:
            self._free(offsets)
            surplus = grant.slack - self._grain
            if surplus > 0:
                grant.slack -= surplus
        if surplus > 0 and self._control is not None:
            self._control.send("returned", nbytes=surplus, asked=False)

    def give_back(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs, and wants unused memory back."""
        grant = self._arena.grant
        with self._guard:
            self._free(offsets)
            self._allocator.trim()
            slack, grant.slack = grant.slack, 0
        assert self._control is not None
        self._control.send("returned", nbytes=slack, asked=True)

    def _free(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if self._parts:
                shared = self._parts.pop(offset, None)
                if shared is not None:
                    offset, left = shared[0], shared[1] - 1
                    shared[1] = left
                    if left:
                        continue
            if offset >= DEVICE_BASE:
                self.free_on_device(offset)
            else:
                self._allocator.free(offset)

    def _get(self, missing: int) -> None:
        """Asks for a larger grant, or frees warm memory. Raises ArenaFull.

        Not under the lock, which the thread that hears the answer may need first.
        """
        grant = self._arena.grant
        if self._control is None:
            raise ArenaFull(f"no room for {missing} bytes in shared memory: there is no server to ask for it")
        with self._asking:
            self._control.send("need", least=missing, most=max(missing, self._grain))
            answer = self._answers.get()
        with self._guard:
            if not answer["error"]:
                grant.slack += answer["nbytes"]
                return
            before = grant.slack
            self._allocator.trim()
            if grant.slack - before < missing:
                raise ArenaFull(answer["error"])


class Lease:
    """Memory of an answer to a request of the stub's model: `nbytes` of the arena at `offset`.

    A lease lies at the bottom of everything that a model can make of such an output: the tensor's memoryview, arrays
    and their slices, buffer exports, DLPack capsules. When the last of them dies, the lease dies, and `drop` tells the
    parent. numpy reads `__array_interface__`, because before Python 3.12 a class cannot offer a buffer.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_drop", "address", "nbytes", "offset")

    def __init__(self, arena: StubArena, offset: int, nbytes: int, drop: Callable[[int], None]) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.address = arena.address(offset)
        self.__array_interface__ = bytes_at(self.address, nbytes)
        self._drop = drop

    def view(self) -> memoryview:
        """The writable memory; keeps the lease alive."""
        array: Any = np.asarray(self)
        return memoryview(array)

    def __del__(self) -> None:
        self._drop(self.offset)


def lease_of(buffer: Any) -> Optional[Lease]:
    """The lease in whose memory an array or memoryview lies, None if it is other memory."""
    while buffer is not None:
        if isinstance(buffer, Lease):
            return buffer
        buffer = buffer.obj if isinstance(buffer, memoryview) else getattr(buffer, "base", None)
    return None
