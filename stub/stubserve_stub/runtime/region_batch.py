"""A batch that refers to clients' shared memory: inputs that lie there are lent, outputs are written there.

Only such batches meet any of this. A request whose region is not there when its batch begins, or goes away meanwhile,
is answered with an error whatever the model said; until then it reads zeros, so that others of its batch are executed
as if nothing had happened.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.runtime.client_regions import ClientRegion, ClientRegions, Loan, RegionGone
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import failed, wire_tensor
from stubserve_stub.wire import codes, places
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.messages import Entry, RegionOutput, WireRequest, WireTensor
from stubserve_stub.wire.places import REGION, InRegion

_GONE = "the shared memory of a request has gone away while it was executed: {}"


class SlotOutputs:
    """Where the outputs of one request go."""

    def __init__(self, regions: ClientRegions, wanted: Dict[str, Tuple[int, int, int]]) -> None:
        self._regions = regions
        self._wanted = wanted

    def tensor(self, name: str, datatype: int, shape: Sequence[int], buffer: Any, placer: Any) -> WireTensor:
        """An output, written where its client wants it or, where that says nothing of it, placed by `placer`.

        Small ones are the server's to write. Raises Refusal where there is no room for it, ArenaFull.
        """
        nbytes = len(buffer) if isinstance(buffer, bytes) else buffer.nbytes
        wanted = self._wanted.get(name)
        if wanted is None or nbytes <= INLINE_BYTES:
            return wire_tensor(name, datatype, shape, buffer, placer)
        number, offset, room = wanted
        if nbytes > room:
            raise Refusal(
                "shared memory size specified with the request for output '{}' ({} bytes) should be at least {} bytes "
                "to hold the results".format(name, room, nbytes),
                codes.INTERNAL,
            )
        try:
            self._regions.find(number).write(offset, buffer)
        except RegionGone as gone:
            raise Refusal("output '{}' could not be written into shared memory: {}".format(name, gone)) from None
        return (name, datatype, shape, InRegion(number, offset, nbytes))


class RegionBatch:
    """What of one batch lies in regions."""

    def __init__(
        self,
        regions: ClientRegions,
        requests: Sequence[Optional[WireRequest]],
        outputs: Sequence[RegionOutput],
    ) -> None:
        self._regions = regions
        self._outputs: Dict[int, Dict[str, Tuple[int, int, int]]] = {}
        for slot, name, number, offset, nbytes in outputs:
            self._outputs.setdefault(slot, {})[name] = (number, offset, nbytes)
        # Of each slot: weakly, what it was lent, and the windows of that; and why it fails
        self._loans: "List[weakref.ref[Loan]]" = []
        self._windows: List[Tuple[int, Any]] = []
        self._failures: Dict[int, str] = {}
        self._requests = [None if one is None else self._request(slot, one) for slot, one in enumerate(requests)]

    def take_requests(self) -> Sequence[Optional[WireRequest]]:
        """The requests of the batch, with arrays in place of such inputs. To be asked once."""
        taken, self._requests = self._requests, []
        return taken

    def outputs(self, slot: int) -> Optional[SlotOutputs]:
        """Where outputs of this slot go; None where none goes into a region."""
        wanted = self._outputs.get(slot)
        return None if wanted is None else SlotOutputs(self._regions, wanted)

    def over(self, entries: Sequence[Entry], memory: Any) -> Sequence[Entry]:
        """To be called when the batch has been executed and all that it was given has been dropped.

        What the model still has of its inputs is its own from now on. Requests whose regions have gone have an error
        for their entry, and `memory` takes back what those had.
        """
        for reference in self._loans:
            _detach(reference())
        for slot, window in self._windows:
            if window.torn:
                self._failures.setdefault(slot, "it has become smaller")
        if not self._failures or not entries:
            return entries
        judged = list(entries)
        for slot, why in self._failures.items():
            entry = judged[slot]
            if isinstance(entry, tuple):
                memory.take_back([entry])
                judged[slot] = failed(_GONE.format(why), codes.INVALID_ARG)
        return judged

    def _request(self, slot: int, request: WireRequest) -> WireRequest:
        *said, inputs = request
        return (*said, [self._input(slot, one) for one in inputs])  # type: ignore[return-value]

    def _input(self, slot: int, wire: WireTensor) -> Any:
        name, datatype, shape, place = wire
        if isinstance(place, bytes) or place[0] != REGION:
            return wire
        found = places.unpack(place)
        assert isinstance(found, InRegion)
        try:
            region = self._regions.find(found.region)
            if self._is_written(slot, region, found):
                memory = region.copy(found.offset, found.nbytes)
            else:
                memory, loan = region.lend(found.offset, found.nbytes)
                self._loans.append(weakref.ref(loan))
                self._windows.append((slot, loan.window))
        except RegionGone as gone:
            self._failures[slot] = str(gone)
            memory = np.zeros(found.nbytes, np.uint8)
        return (name, datatype, shape, memory)

    def _is_written(self, slot: int, region: ClientRegion, place: InRegion) -> bool:
        """Whether an output of the same request is to be written where an input is."""
        for number, offset, nbytes in self._outputs.get(slot, {}).values():
            try:
                other = self._regions.find(number)
            except RegionGone:
                continue
            if region.overlaps(place.offset, place.nbytes, other, offset, nbytes):
                return True
        return False


def _detach(loan: Optional[Loan]) -> None:
    if loan is not None:
        loan.detach()
