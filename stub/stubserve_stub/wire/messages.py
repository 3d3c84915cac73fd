"""The messages of parent and stub: over the rings tuples in msgpack, whose first element is the kind.

This text is the format; `tests/stub/wire/test_messages.py` pins every byte of it. Each kind has a function that packs
it, whose parameters are its fields, and a method that receives it, with the same parameters; `deliver` calls that.
There are no objects in between: to make one costs as much as all else about a small message.

In the hot path::

    parent ▶ stub   (EXECUTE, batch, frees, requests)
    parent ▶ stub   (EXECUTE, batch, frees, requests, sequences)
    parent ▶ stub   (EXECUTE, batch, frees, requests, sequences, region_outputs)
    parent ▶ stub   (STOP,)
    stub ▶ parent   (RESULT, batch, start_ns, end_ns, entries, held, error)
    stub ▶ parent   (RESPONSE, batch, index, start_ns, response, flags, held)
    stub ▶ parent   (RELEASED, offsets)

Requests that a model makes (BLS) go out with the results. Their answers have a ring of their own, because the threads
that wait for them read it while the main thread is in `execute`::

    stub ▶ parent   (CALL, call, blocking, decoupled, model, version, request, released)
    stub ▶ parent   (CALL_BLOCKS, call)           the call has turned out to hold up its instance
    stub ▶ parent   (CANCEL, call)
    stub ▶ parent   (TAKEN, call, count, nbytes)  so many of its answers have been taken
    stub ▶ parent   (DISCARD, call)               nobody is interested in further answers
    parent ▶ stub   (call, final, response, frees)

    requests  one for each slot of the batch, in order; None for a slot that is empty
    request   (id, options, trace, requested_outputs, inputs)
    options   see `stubserve_stub.wire.options`
    region_outputs   (slot, name, region, offset, nbytes): outputs that are to be written into clients' regions
    entries   one for each slot: a response; None where a sender answers, before or after, and for an empty slot;
              RESCHEDULED where the same request is to be executed again
    sequences for models with implicit state, one for each slot: the number of the sequence whose states are meant,
              which no other sequence has; 0 for an empty slot
    response  (error, outputs, parameters); in RESPONSE and in answers also None: the flag alone
    flags     of RESPONSE; FINAL: no further response to this request; ACKNOWLEDGE: say when it has been passed on
    trace     (number, context) of a request that is traced, or None; the context is a text for other programs, or None
    tensor    (name, datatype, shape, place)      datatype is the number in Triton's DataType enum
    place     see `stubserve_stub.wire.places`
    error     (message, code), or None; the one of RESULT (a message) is for the whole batch
    frees     arena offsets in the stub's own segment whose readers are done
    held      offsets of inputs that the model still holds
    released  offsets of held inputs and of outputs in answers whose last views have died
    blocking  whether the call keeps its instance from finishing the batch that it executes
    version   of the model that is called, -1 for any

A message that is too long for a record lies in the arena. Its record is marked SPILLED, and has its place.

Times are CLOCK_MONOTONIC nanoseconds, the same clock for all processes of a machine. `parameters` is a dict or None,
`requested_outputs` a list of names or None for all. It is a dict where outputs may stay in memory of a GPU: the values
say of each name whether it may. In a CALL an empty dict means that all outputs may.

Off the hot path there is the control socket. Its messages are dicts with a "kind", each behind its length (4 bytes,
network order).
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Collection, Dict, Iterable, Optional, Sequence, Tuple, Union

import msgpack

from stubserve_stub.wire import places
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import InArena, Place

# parent ▶ stub
EXECUTE = 1
STOP = 2

# stub ▶ parent
RESULT = 1
RELEASED = 2
RESPONSE = 3
CALL = 4
CALL_BLOCKS = 5
CANCEL = 6
DISCARD = 7
TAKEN = 8

FINAL = 1
ACKNOWLEDGE = 2

RESCHEDULED = 1

WireTensor = Tuple[str, int, Sequence[int], Place]
WireTrace = Optional[Tuple[int, Optional[str]]]
# Received options are a plain tuple.
# A list, or a dict of names
Requested = Optional[Collection[str]]
WireRequest = Tuple[str, RequestOptions, WireTrace, Requested, Sequence[WireTensor]]
WireResponse = Tuple[Optional[Tuple[str, int]], Sequence[WireTensor], Optional[Dict[str, Any]]]
# Slot, name, region, offset in it, size
RegionOutput = Tuple[int, str, int, int, int]
# A response, None or RESCHEDULED
Entry = Union[WireResponse, int, None]
# Fields behind their kind
Message = Tuple[Any, ...]
Answer = Tuple[int, bool, Optional[WireResponse], Sequence[int]]
Handlers = Dict[int, Callable[..., None]]

# Names and parameters are a client's bytes and need not be UTF-8; they come out as they went in.
TEXT = "surrogateescape"


def _packer() -> Callable[[Any], bytes]:
    made: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors=TEXT).pack
    return made


_pack = _packer()
# A packer keeps the buffer of its longest message, up to twice its size. A packer with more than this is dropped.
_KEPT_BYTES = 1 << 20


def pack(message: Any) -> bytes:
    """The bytes of one message, or of a part of one."""
    global _pack
    packed = _pack(message)
    if len(packed) > _KEPT_BYTES:
        _pack = _packer()
    return packed


def unpack(data: Any) -> Any:
    """One message out of its bytes; arrays become tuples."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False, unicode_errors=TEXT)


# parent ▶ stub


def handlers_of_stub(listener: Any) -> Handlers:
    """The methods that `deliver` calls for messages of the parent."""
    return {EXECUTE: listener.on_execute, STOP: listener.on_stop}


def pack_execute(
    batch: int,
    frees: Sequence[int],
    requests: Sequence[Optional[WireRequest]],
    sequences: Optional[Sequence[int]] = None,
    region_outputs: Optional[Sequence[RegionOutput]] = None,
) -> bytes:
    if region_outputs is not None:
        return pack((EXECUTE, batch, frees, requests, sequences or (), region_outputs))
    if sequences is None:
        return pack((EXECUTE, batch, frees, requests))
    return pack((EXECUTE, batch, frees, requests, sequences))


def pack_stop() -> bytes:
    return pack((STOP,))


def pack_answer(call: int, final: bool, response: Optional[WireResponse], frees: Sequence[int]) -> bytes:
    """An answer to a call, for the ring that has only answers."""
    return pack((call, final, response, frees))


# stub ▶ parent


def handlers_of_parent(work: Any, calls: Any) -> Handlers:
    """The methods that `deliver` calls for messages of the stub: about batches and memory, and about its calls."""
    return {
        RESULT: work.on_result,
        RESPONSE: work.on_response,
        RELEASED: work.on_released,
        CALL: calls.on_call,
        CALL_BLOCKS: calls.on_call_blocks,
        CANCEL: calls.on_cancel,
        TAKEN: calls.on_taken,
        DISCARD: calls.on_discard,
    }


def pack_result(
    batch: int, start_ns: int, end_ns: int, entries: Sequence[Entry], held: Sequence[int], error: Optional[str]
) -> bytes:
    return pack((RESULT, batch, start_ns, end_ns, entries, held, error))


def pack_response(
    batch: int, index: int, start_ns: int, response: Optional[WireResponse], flags: int, held: Sequence[int]
) -> bytes:
    return pack((RESPONSE, batch, index, start_ns, response, flags, held))


def pack_released(offsets: Sequence[int]) -> bytes:
    return pack((RELEASED, offsets))


def pack_call(
    call: int,
    blocking: bool,
    decoupled: bool,
    model: str,
    version: int,
    request: WireRequest,
    released: Sequence[int],
) -> bytes:
    return pack((CALL, call, blocking, decoupled, model, version, request, released))


def pack_call_blocks(call: int) -> bytes:
    return pack((CALL_BLOCKS, call))


def pack_cancel(call: int) -> bytes:
    return pack((CANCEL, call))


def pack_taken(call: int, count: int, nbytes: int) -> bytes:
    return pack((TAKEN, call, count, nbytes))


def pack_discard(call: int) -> bytes:
    return pack((DISCARD, call))


# Both ways


def deliver(handlers: Handlers, taken: Iterable[Message]) -> None:
    """Calls the method for each of these messages. Raises KeyError or TypeError for messages of another form."""
    for message in taken:
        handlers[message[0]](*message[1:])


def pack_spilled(place: InArena) -> bytes:
    return pack(place)


def unpack_spilled(data: Any) -> InArena:
    """The place of the message. Raises ValueError for other records."""
    place = places.unpack(unpack(data))
    if not isinstance(place, InArena):
        raise ValueError(f"a message that is too long for a record lies nowhere but in the arena: {place!r}")
    return place


# The control socket

_LENGTH = struct.Struct("!I")
# The first bytes of a dict in msgpack
_MAPS = (*range(0x80, 0x90), 0xDE, 0xDF)


def frame(message: Dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors=TEXT)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Cuts a stream of bytes into control messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Optional[Dict[str, Any]]:
        """The next whole message, or None until more bytes are fed.

        Raises ValueError where no message begins: the letters of a text would be a length that never arrives.
        """
        if len(self._buffer) <= 4:
            return None
        if self._buffer[4] not in _MAPS:
            raise ValueError(f"no message begins with {bytes(self._buffer[:64])!r}")
        (length,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        message: Dict[str, Any] = msgpack.unpackb(body, strict_map_key=False, unicode_errors=TEXT)
        return message
