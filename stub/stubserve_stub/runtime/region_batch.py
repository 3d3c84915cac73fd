"""A batch that refers to clients' shared memory: inputs that lie there are lent, outputs are written there.

Other batches need none of this. A request whose region is missing when its batch begins, or goes away meanwhile, is
answered with an error, whatever the model says. Until then the model reads zeros, so the other requests of the batch
are executed as usual. Responses are checked when `execute` has returned, or as a sender sends them. Zeros can be read
only after the region is known to be gone, so no response made of them gets out. Calls of other models may be made of
zeros: these models compute as for a client that sends zeros, and the request fails whatever they answer, unless it has
sent its last response before.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.runtime.client_regions import InputLoan, MappedRegion, MappedRegions
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import RegionWriter, failed, own_offsets
from stubserve_stub.runtime.region_window import RegionGone
from stubserve_stub.wire import codes, places
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.messages import Entry, RegionOutput, WireRequest, WireResponse, WireTensor
from stubserve_stub.wire.places import REGION, InRegion

_GONE = "the shared memory of a request has gone away while it was executed: {}"


class RegionInputs:
    """The inputs of one request that lie in regions, and the check of its responses. Safe on any thread."""

    __slots__ = ("_is_told", "failure", "loans", "windows")

    def __init__(self) -> None:
        # Why the request fails; empty while all its regions are there
        self.failure = ""
        self._is_told = False
        # The inputs, weakly; and the windows through which they are seen
        self.loans: "List[weakref.ref[InputLoan]]" = []
        self.windows: List[Any] = []

    def has_failed(self) -> bool:
        """Looks whether a region is gone. Once one is, the request has failed for good."""
        if not self.failure and any(window.torn for window in self.windows):
            self.failure = "it has become smaller, or /dev/shm is full"
        return bool(self.failure)

    def check_response(
        self, response: Optional[WireResponse], free: Callable[[Sequence[int]], None]
    ) -> Optional[WireResponse]:
        """The response to send: an error if the request has failed, and then `free` gets the outputs.

        The end of a stream, which is None, becomes an error if no response has said it before.
        """
        if not self.has_failed() or (response is None and self._is_told):
            return response
        if response is not None:
            free(own_offsets(response[1]))
        self._is_told = True
        return failed(_GONE.format(self.failure), codes.INVALID_ARG)

    def keep(self) -> None:
        """The request has been answered: inputs that the model still has become its own."""
        for loan in self._alive():
            try:
                loan.window.keep()
            except RegionGone as gone:
                self.failure = self.failure or str(gone)

    def detach(self) -> None:
        """As `keep`, while the model may still work on its inputs."""
        for loan in self._alive():
            loan.window.detach()

    def _alive(self) -> List[InputLoan]:
        return [loan for loan in (reference() for reference in self.loans) if loan is not None]


class RegionBatch:
    def __init__(
        self,
        regions: MappedRegions,
        number: int,
        requests: Sequence[Optional[WireRequest]],
        outputs: Sequence[RegionOutput],
        region_inputs: Dict[Tuple[int, int], RegionInputs],
    ) -> None:
        """`region_inputs` gets the inputs of open requests, by batch and slot, for the code that sends responses."""
        self._regions = regions
        self._number = number
        self._region_inputs = region_inputs
        self._outputs: Dict[int, Dict[str, Tuple[int, int, int]]] = {}
        for slot, name, number, offset, nbytes in outputs:
            self._outputs.setdefault(slot, {})[name] = (number, offset, nbytes)
        self._slots: Dict[int, RegionInputs] = {}
        self._requests = [None if one is None else self._request(slot, one) for slot, one in enumerate(requests)]

    def take_requests(self) -> Sequence[Optional[WireRequest]]:
        """The requests of the batch, with arrays in place of inputs in regions. To be called once."""
        taken, self._requests = self._requests, []
        return taken

    def writer(self, slot: int) -> Optional[RegionWriter]:
        """The writer for outputs of this slot; None if none of them goes into a region."""
        wanted = self._outputs.get(slot)
        return None if wanted is None else functools.partial(self._write, wanted)

    def _write(self, outputs: Dict[str, Tuple[int, int, int]], name: str, buffer: Any) -> Optional[InRegion]:
        nbytes = len(buffer) if isinstance(buffer, bytes) else buffer.nbytes
        wanted = outputs.get(name)
        if wanted is None or nbytes <= INLINE_BYTES:
            return None
        number, offset, room = wanted
        if nbytes > room:
            raise Refusal(
                f"shared memory size specified with the request for output '{name}' ({room} bytes) should be at least "
                f"{nbytes} bytes to hold the results"
            )
        try:
            self._regions.find(number).write(offset, buffer)
        except RegionGone as gone:
            raise Refusal(f"output '{name}' could not be written into shared memory: {gone}") from None
        return InRegion(number, offset, nbytes)

    def finish(self, entries: Sequence[Entry], memory: Any) -> Sequence[Entry]:
        """To be called when the batch has been executed and its objects have been dropped.

        Inputs that the model still has become its own. Requests whose regions have gone get an error as their entry,
        and `memory` takes their outputs back. `entries` are empty where the whole batch has failed.
        """
        checked = list(entries)
        for slot, inputs in self._slots.items():
            if checked and checked[slot] is None and (self._number, slot) in self._region_inputs:
                inputs.detach()
                continue
            self._region_inputs.pop((self._number, slot), None)
            inputs.keep()
            entry = checked[slot] if checked else None
            if isinstance(entry, tuple):
                checked[slot] = inputs.check_response(entry, memory.free)
        return checked

    def revoke(self) -> None:
        """The batch is answered in another way, and so are its open requests."""
        for slot in self._slots:
            self._region_inputs.pop((self._number, slot), None)

    def _request(self, slot: int, request: WireRequest) -> WireRequest:
        *said, inputs = request
        return (*said, [self._input(slot, one) for one in inputs])  # type: ignore[return-value]

    def _input(self, slot: int, wire: WireTensor) -> Any:
        name, datatype, shape, place = wire
        if isinstance(place, bytes) or place[0] != REGION:
            return wire
        found = places.unpack(place)
        assert isinstance(found, InRegion)
        inputs = self._slots.get(slot)
        if inputs is None:
            inputs = self._slots[slot] = self._region_inputs[self._number, slot] = RegionInputs()
        try:
            region = self._regions.find(found.region)
            if self._is_written(slot, region, found):
                memory = region.copy(found.offset, found.nbytes)
            else:
                memory, loan = region.lend(found.offset, found.nbytes)
                inputs.loans.append(weakref.ref(loan))
                inputs.windows.append(loan.window)
        except RegionGone as gone:
            inputs.failure = str(gone)
            memory = np.zeros(found.nbytes, np.uint8)
        return (name, datatype, shape, memory)

    def _is_written(self, slot: int, region: MappedRegion, place: InRegion) -> bool:
        """Whether an output of the same request goes to memory of an input."""
        for number, offset, nbytes in self._outputs.get(slot, {}).values():
            try:
                other = self._regions.find(number)
            except RegionGone:
                continue
            if region.overlaps(place.offset, place.nbytes, other, offset, nbytes):
                return True
        return False
