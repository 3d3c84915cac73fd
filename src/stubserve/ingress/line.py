"""A worker's rings: requests to the owner, and its answers.

Requests that one turn of the event loop brings are announced together, at its end, with outputs that have been sent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from stubserve_stub.wire import layout
from stubserve_stub.wire.arena import Segment
from stubserve_stub.wire.messages import pack_spilled, unpack, unpack_spilled
from stubserve_stub.wire.places import InArena, InRegion, Place
from stubserve_stub.wire.places import unpack as unpack_place
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingReader, RingWriter, read_doorbell

from stubserve.errors import Code, ServeError
from stubserve.inference.memory import Block, Span
from stubserve.inference.regions import RegionSpan
from stubserve.inference.request import Refusal, Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.ingress import messages
from stubserve.ingress.control import end_now
from stubserve.ingress.messages import Description
from stubserve.instances.memory import IngressMemory
from stubserve.instances.patient_ring import PatientRing
from stubserve.protocols.client_regions import RegionTable


class Line:
    """A worker's line to the owner. `on_description` hears of descriptions.

    `doorbell_out` is the owner's, `doorbell_in` the worker's. `regions` are None where clients may not use shared
    memory.
    """

    def __init__(
        self,
        memory: IngressMemory,
        segment: Segment,
        doorbell_out: int,
        doorbell_in: int,
        on_description: Callable[[Description], None],
        regions: RegionTable | None = None,
    ) -> None:
        self._regions = regions
        self._memory = memory
        self._doorbell_in = doorbell_in
        self._on_description = on_description
        self._loop = asyncio.get_running_loop()
        ours, theirs = segment.stub_words, segment.parent_words
        ring = RingWriter(segment.ring(layout.RESPONSE_RING), theirs, layout.RESPONSES_READ, doorbell_out)
        self._ring = PatientRing(ring, on_broken=end_now)
        self._reader = RingReader(segment.ring(layout.ANSWER_RING), ours, layout.ANSWERS_READ)
        self._numbers = itertools.count(1)
        self._open: dict[int, Request] = {}
        self._number_of: dict[Request, int] = {}
        # Inputs that the owner reads, by their offsets
        self._lent: dict[int, list[Span]] = {}
        # Outputs that have been sent
        self._released: list[int] = []
        self._turn_ends = False
        os.set_blocking(doorbell_in, False)
        self._loop.add_reader(doorbell_in, self._on_doorbell)

    def submit(self, request: Request, model: str, version: str, description: int, context: str | None) -> None:
        """Sends a request, which has been admitted by a description; 0 where the owner is to admit it.

        `context` is the value of `traceparent` where the owner wants it. Inputs are the owner's from now on. Raises
        ServeError where there is no memory for the message.
        """
        number = next(self._numbers)
        inputs = [(tensor.name, tensor.datatype, tuple(tensor.shape), _place(tensor)) for tensor in request.inputs]
        regions = None
        if request.regions is not None:
            regions = [
                (output, place.region.number, place.offset, place.nbytes) for output, place in request.regions.items()
            ]
        wire = (
            request.id, request.correlation_id, request.flags, request.priority, request.timeout_us,
            request.parameters, request.requested_outputs, inputs, request.request_start_ns, context, description,
            request.batch_size, request.client, regions,
        )  # fmt: skip
        released, self._released = self._released, []
        try:
            self._send(messages.pack_call(number, model, version, wire, released))
        except BaseException:
            self._released[:0] = released
            raise
        for tensor in request.inputs:
            if tensor.span is not None and not isinstance(tensor.span, RegionSpan):
                self._lent.setdefault(tensor.offset, []).append(tensor.span)
        self._open[number] = request
        self._number_of[request] = number

    def cancel(self, request: Request) -> None:
        """Its client has gone; it is answered all the same."""
        number = self._number_of.get(request)
        if number is not None:
            self._send(messages.pack_cancel(number))

    def describe(self, model: str, version: str) -> None:
        """Asks for a description."""
        self._send(messages.pack_describe(model, version))

    def on_freed(self, offsets: Sequence[int]) -> None:
        """The owner has read these inputs."""
        for offset in offsets:
            spans = self._lent[offset]
            spans.pop().drop()
            if not spans:
                del self._lent[offset]

    # There

    def _send(self, message: bytes) -> None:
        """Raises ServeError."""
        flags = 0
        if len(message) > MAX_RECORD:
            block = self._memory.store(message)
            self._lent.setdefault(block.offset, []).append(block.whole())
            message, flags = pack_spilled(InArena(block.offset, block.nbytes)), SPILLED
        self._ring.put(message, flags)
        self._announce_soon()

    def _announce_soon(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ends = False
        if self._released:
            released, self._released = self._released, []
            self._send(messages.pack_released(released))
        self._ring.announce()

    # Back

    def _on_doorbell(self) -> None:
        try:
            count, _ = read_doorbell(self._doorbell_in)
        except BlockingIOError:
            return
        for number, _, wire, frees in self._reader.take(count, self._decode):
            if frees:
                self.on_freed(frees)
            if number:
                self._answer(number, *wire)
            elif wire is not None:
                self._on_description(wire)

    def _decode(self, data: memoryview, flags: int) -> Any:
        if not flags & SPILLED:
            return unpack(data)
        place = unpack_spilled(data)
        message = unpack(self._memory.arena.view(place.offset, place.nbytes))
        self._release(place.offset)
        return message

    def _answer(self, number: int, error: Any, outputs: Sequence[Any], parameters: dict[str, Any] | None) -> None:
        request = self._open.pop(number)
        del self._number_of[request]
        if error is not None:
            message, code, retry_after_s, refused = error
            raised = ServeError(Code(code), message)
            raised.retry_after_s = retry_after_s
            request.on_response(request, Refusal(error=raised) if refused else Response(error=raised))
            return
        response = Response([self._output(*output) for output in outputs], parameters)
        request.on_response(request, response)
        drop_blocks(response.outputs)

    def _output(self, name: str, datatype: int, shape: Sequence[int], data: Any) -> Tensor:
        if isinstance(data, bytes):
            return Tensor(name, datatype, shape, data)
        place = unpack_place(data)
        if isinstance(place, InRegion):
            assert self._regions is not None
            return Tensor(name, datatype, shape, None, RegionSpan(self._regions.piece(*place[1:])))
        assert isinstance(place, InArena)
        view = self._memory.arena.view(place.offset, place.nbytes)
        return Tensor(name, datatype, shape, None, Block(place.offset, place.nbytes, view, self._sent).whole())

    def _sent(self, block: Block) -> None:
        self._release(block.offset)

    def _release(self, offset: int) -> None:
        self._released.append(offset)
        self._announce_soon()


def _place(tensor: Tensor) -> Place:
    if tensor.data is not None:
        return bytes(tensor.data)
    span = tensor.span
    assert span is not None
    return span.in_region(tensor.offset, tensor.nbytes) or InArena(tensor.offset, tensor.nbytes)
