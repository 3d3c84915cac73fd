"""An inference request's body as a `Request`: JSON, JSON with binary tensors behind it, or raw bytes.

The order of the checks is upstream's, so that of several faults a client is told the same one: JSON, id, parameters,
inputs one by one, what is left over, outputs. What needs the model's signature alone is `admission.admit`'s.

Nearly all requests have no fault, and say what they say in the usual way. Those are read as typed objects
(`infer_document`) and made into a request in one pass, 5 µs for two inputs. Whatever that pass does not expect ends it,
and the request is read once more by `infer_json`, for the values that it then has or the error that it deserves.
Nothing is remembered of a request but how its outputs were wanted, so one that differs from all before costs no more.

Ownership: every tensor of a decoded request that lies in a block holds it once. When decoding fails nothing is held.
"""

from __future__ import annotations

import re

from msgspec import UNSET
from stubserve_stub.wire.datatypes import BY_NAME, BYTES

from stubserve.api.placement import SMALL_BYTES, BodyPlacer, Regions, Store
from stubserve.api.reply_format import ReplyFormat, Slot
from stubserve.errors import ServeError, invalid
from stubserve.http import infer_document
from stubserve.http.body import DEFAULT_MAX_INPUT_SIZE, LIMIT_HINT
from stubserve.http.infer_json import decode_json, read_parameters
from stubserve.http.infer_raw import decode_raw
from stubserve.http.infer_structs import InferDocument, Input
from stubserve.http.json import data as json_data
from stubserve.inference.request import Request, unanswered
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block

_LEADING_INTEGER = re.compile(rb"[ \t\r\n\v\f]*([+-]?[0-9]+)").match
_FEW_DIGITS = 10
_ALL_JSON, _ALL_BINARY = ReplyFormat(None, False), ReplyFormat(None, True)
# Ways to ask for outputs that are remembered, for each model
FORMATS = 256


def decode(
    body: bytes | memoryview,
    json_length: int | None,
    signature: Signature,
    block: Block | None,
    body_offset: int,
    store: Store,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
    regions: Regions | None = None,
) -> tuple[Request, ReplyFormat]:
    """Reads one inference request, and how its reply is to look. Raises ServeError.

    `body` is the whole, decompressed body, its first `json_length` bytes JSON (None: all of it; 0: raw mode). Where
    `block` is given, the body lies in it at arena offset `body_offset`, and binary tensors stay there; otherwise those
    that are too large to travel inside a message are put into the arena by `store`, whose block then belongs to the
    tensor. `max_input_size` (bytes) bounds JSON and what is made of it, and raw bodies, not binary tensors. `regions`
    are clients' shared memory, None where that may not be used.
    """
    size = len(body)
    end = size if json_length is None else json_length
    placer = BodyPlacer(body, block, body_offset, store, regions)
    try:
        if not end:
            return decode_raw(body, signature, placer, max_input_size)
        if end > size:
            raise invalid(f"unexpected size for request JSON, expecting {end - size} more bytes")
        if end > max_input_size:
            raise invalid(
                f"request JSON size of {end} bytes exceeds the maximum allowed input size of {max_input_size} bytes. "
                f"{LIMIT_HINT}"
            )
        header = bytes(body[:end])
        document = infer_document.read(header, len(signature.inputs))
        if document is not None:
            found = _read(document, body, end, signature, placer, max_input_size)
            if found is not None:
                return found
            placer.undo()
            placer = BodyPlacer(body, block, body_offset, store, regions)
        return decode_json(header, signature, placer, max_input_size)
    except BaseException:
        placer.undo()
        raise


def _read(
    document: InferDocument,
    body: bytes | memoryview,
    at: int,
    signature: Signature,
    placer: BodyPlacer,
    max_input_size: int,
) -> tuple[Request, ReplyFormat] | None:
    """The request of a document, whose binary tensors follow from `at` on; None where `decode_json` is to read it."""
    size = len(body)
    inputs: list[Tensor] = []
    for item in document.inputs:
        parameters = item.parameters
        if parameters is UNSET:
            tensor = _json_tensor(item, placer, max_input_size)
            if tensor is None:
                return None
        else:
            kind = BY_NAME.get(item.datatype)
            nbytes = parameters.binary_data_size
            if kind is None or item.data or nbytes > size - at:
                return None
            if nbytes <= SMALL_BYTES:
                tensor = Tensor(item.name, kind.number, item.shape, bytes(body[at : at + nbytes]))
            else:
                tensor = placer.slice(item.name, kind.number, item.shape, at, nbytes)
            at += nbytes
        inputs.append(tensor)
    if at != size:
        return None
    request = Request(inputs, unanswered)
    id = document.id
    if id is not UNSET:
        request.id = id.partition("\0")[0] if "\0" in id else id
    binary = False
    if document.parameters is not UNSET:
        try:
            binary = read_parameters(request, document.parameters)
        except ServeError:
            return None
    if document.outputs is UNSET:
        return request, _ALL_BINARY if binary else _ALL_JSON
    reply_format = _reply_format(document, binary, signature)
    if reply_format.slots is not None:
        request.requested_outputs = list(reply_format.slots)
        if len(reply_format.slots) != len(document.outputs):
            return None
    return request, reply_format


def _json_tensor(item: Input, placer: BodyPlacer, max_input_size: int) -> Tensor | None:
    """The tensor of an input with its elements in JSON; None where there is anything unusual about it."""
    kind = BY_NAME.get(item.datatype)
    if kind is None or not item.data:
        return None
    elements = 1
    for size in item.shape:
        if not 0 < size <= max_input_size:
            return None
        elements *= size
        if elements > max_input_size:
            return None
    if elements * kind.itemsize > max_input_size or not item.shape:
        return None
    data = bytes(item.data)
    if kind.number == BYTES:
        texts = json_data.read_texts(data, elements)
        # So many bytes are lengths, and the strings have no more than their JSON.
        if texts is None or 4 * elements + len(data) > max_input_size:
            return None
        return placer.put_texts(item.name, item.shape, texts)
    found = json_data.read_plain(kind.number, data, elements)
    if found is None or len(found) > max_input_size:
        return None
    return placer.put(item.name, kind.number, item.shape, found)


def _reply_format(document: InferDocument, binary: bool, signature: Signature) -> ReplyFormat:
    """How the outputs that a document asks for go into the reply."""
    wanted = []
    for output in document.outputs or ():
        parameters = output.parameters
        if parameters is UNSET:
            wanted.append((output.name, False, 0))
        else:
            classes = parameters.classification
            wanted.append((output.name, parameters.binary_data is True, 0 if classes is UNSET else classes))
    key = (binary, *wanted)
    known: dict[tuple[object, ...], ReplyFormat] = signature.memo.setdefault("reply-formats", {})
    found = known.get(key)
    if found is None:
        slots = {name: Slot(as_binary, classes) for name, as_binary, classes in wanted}
        found = ReplyFormat(slots or None, binary)
        if len(known) >= FORMATS:
            known.clear()
        known[key] = found
    return found


def parse_header_length(value: bytes | None, content_length: int) -> int | None:
    """The length of the JSON part by its Inference-Header-Content-Length header: None without one, 0 for raw mode.

    Read as C's stoi reads: spaces and a sign before the digits, anything after them. Raises ServeError (INVALID_ARG).
    """
    if value is None:
        return None
    if value.isdigit() and len(value) < _FEW_DIGITS:
        length = int(value)
        if length <= content_length:
            return length
    found = _LEADING_INTEGER(value)
    text = value.decode("latin-1")
    if found is None:
        raise invalid(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    # Twenty digits are out of range already; reading all of a long line of them would take its time.
    length = int(found[1][:20])
    if not -(1 << 31) <= length < 1 << 31:
        raise invalid(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {text}"
        )
    if not 0 <= length <= content_length:
        raise invalid(f"inference header size should be in range (0, {content_length}), got: {length}")
    return length
