"""The short way from the JSON of an inference request to the request: read as typed objects by msgspec, in one go.

The types (`infer_structs`) say what a usual request is made of, and nothing else is let in. Whatever does not fit is
None here, and is for `infer_json` to read, which knows upstream's rules for the odd and upstream's words for the wrong.
What fits means the same to both, but for names that occur twice in one object: msgspec takes the last of them, upstream
the first. So the members that were read are counted, and have to be as many as the text has colons outside of strings.
A name that was dropped leaves a colon behind, whatever its value was, so no such text can pass.

Nearly all of a long text are elements, which are read where they become bytes (`json.data`). So their lists are cut
out, and what is left is read with an empty list in each place: if that is a usual request, and what was cut out are
lists, then the whole text is one, and means both together.

Two inputs take 5 µs. Nothing is remembered of a request but how its outputs were wanted, so one that differs from all
before costs no more.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from stubserve_stub.wire.datatypes import BY_NAME, BYTES
from stubserve_stub.wire.options import NO_OPTIONS, RequestOptions

from stubserve.api.placement import SMALL_BYTES, BodyPlacer, ReplyFormat, Slot
from stubserve.api.request_options import RESERVED
from stubserve.errors import ServeError, internal, invalid
from stubserve.http import infer_structs
from stubserve.http.infer_structs import InferDocument, Input
from stubserve.http.json import data as json_data
from stubserve.http.json.values import ESCAPED_COLON, as_bool, as_string, as_uint, is_int, is_uint
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor

# A million of them would keep a hundred times the memory that their text has.
MAX_PARAMETERS = 10_000
# Ways to ask for outputs that are remembered, for each model
FORMATS = 256
_ALL_JSON, _ALL_BINARY = ReplyFormat(None, False), ReplyFormat(None, True)
# From this length on it pays to read what is not elements by itself
_LONG = 1024
_KEY = b'"data":'
# What stands in the place of elements that have been cut out
_EMPTY = b"[]"


def read(
    body: bytes | memoryview, text: bytes, signature: Signature, placer: BodyPlacer, max_input_size: int
) -> tuple[Request, ReplyFormat] | None:
    """The request of a body, of which this is the JSON; None where `decode_json` is to read it."""
    document = _document(text, len(signature.inputs))
    if document is None:
        return None
    at = len(text)
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
    id = "" if document.id is UNSET else document.id.partition("\0")[0]
    options, binary = NO_OPTIONS, False
    if document.parameters is not UNSET:
        try:
            options, binary = read_parameters(document.parameters)
        except ServeError:
            return None
    if document.outputs is UNSET:
        return Request(inputs, id, options), _ALL_BINARY if binary else _ALL_JSON
    reply_format = _reply_format(document, binary, signature)
    slots = reply_format.slots
    if slots is not None and len(slots) != len(document.outputs):
        return None
    return Request(inputs, id, options, None if slots is None else list(slots)), reply_format


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
        found_strings = json_data.read_strings(data, elements)
        # So many bytes are lengths, and the strings have no more than their JSON.
        if found_strings is None or 4 * elements + len(data) > max_input_size:
            return None
        return placer.put_strings(item.name, item.shape, found_strings)
    found = json_data.read_plain(kind.number, data, elements)
    if found is None or len(found) > max_input_size:
        return None
    if len(found) <= SMALL_BYTES:
        return Tensor(item.name, kind.number, item.shape, found)
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


def read_parameters(parameters: Any) -> tuple[RequestOptions, bool]:
    """The options that parameters are, and whether outputs are binary unless said otherwise. Raises ServeError."""
    if not isinstance(parameters, dict):
        raise internal("failed to get request params.: attempt to get members for non-object")
    if len(parameters) > MAX_PARAMETERS:
        raise invalid(f"request has {len(parameters)} parameters; it may have {MAX_PARAMETERS}")
    binary = False
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary = value if type(value) is bool else as_bool(value, key)
        elif key in RESERVED:
            RESERVED[key].put(options, _value(key, value, RESERVED[key].types))
        elif key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        elif isinstance(value, str | bool) or is_int(value):
            others[key] = value
        elif isinstance(value, int | float):
            # An integer beyond 64 bits with a sign is a double to upstream.
            others[key] = float(value)
        else:
            raise invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    return RequestOptions(**options, parameters=others or None), binary


def _value(key: str, value: Any, types: tuple[str, ...]) -> Any:
    """The value of a parameter of one of these types. Raises ServeError."""
    if "bool_param" in types:
        return as_bool(value, key)
    if "string_param" not in types:
        return as_uint(value, key)
    return value if "int64_param" in types and is_uint(value) else as_string(value, key)


def _document(text: bytes, most: int) -> InferDocument | None:
    """The request in a JSON text; None where it is not a usual one, or none at all.

    Its model has `most` inputs. Elements of a long text have not been read: whether they are a list at all is for their
    reader to find out.
    """
    if len(text) >= _LONG:
        pieces = _cut(text, most)
        if pieces is not None:
            return _read_around(pieces)
    try:
        document = infer_structs.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if text.count(b":") == _members(document):
        return document
    colons = text.count(b":") - sum(bytes(item.data).count(b":") for item in document.inputs)
    return document if _has_each_name_once(document, text, colons) else None


def _cut(text: bytes, most: int) -> list[bytes] | None:
    """A text cut before and behind each list of elements, so that every second piece is one; None if that is not easy.

    A key is known by its closing quote and colon, which stand in no string. The end of a list is the first bracket, of
    strings the last one behind a quote: where that is wrong, what has been cut out is no list, or the rest no request.
    To look for a key among 32 texts takes 2 µs, so that is not done where there is no further input.
    """
    pieces: list[bytes] = []
    at = 0
    key = text.find(_KEY)
    while key >= 0:
        start = key + len(_KEY)
        if text.startswith(b" ", start):
            start += 1
        first = start
        while text.startswith(b"[", first):
            first += 1
        close = b"]" * (first - start)
        if not close or text[first : first + 1].isspace():
            return None
        if text.startswith(b'"', first):
            following = text.find(_KEY, first) if most > 1 else -1
            found = text.rfind(b'"' + close, first, following if following >= 0 else len(text)) + 1
        else:
            found = text.find(close, first)
        if found <= 0:
            return None
        pieces.append(text[at:start])
        at = found + len(close)
        pieces.append(text[start:at])
        key = text.find(_KEY, at)
    pieces.append(text[at:])
    return pieces


def _read_around(pieces: list[bytes]) -> InferDocument | None:
    """The request in a text whose lists of elements were cut out; the elements are still text."""
    rest = _EMPTY.join(pieces[::2])
    try:
        document = infer_structs.decode(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    given = [item for item in document.inputs if item.data]
    # There are more where a key is spelled in another way, and less where an input has two of them.
    if len(given) != len(pieces) // 2 or not _has_each_name_once(document, rest, rest.count(b":")):
        return None
    at = 1
    for item in given:
        item.data = msgspec.Raw(pieces[at])
        at += 2
    return document


def _has_each_name_once(document: InferDocument, text: bytes, colons: int) -> bool:
    """Whether a text with so many colons, beside those in elements, has no name that was read over."""
    colons -= _members(document)
    # Where one is escaped, a string has more of them than its text.
    return not colons or (ESCAPED_COLON not in text and colons == _colons_in_strings(document))


def _members(document: InferDocument) -> int:
    """How many members of objects were read."""
    count = 1
    for item in document.inputs:
        count += 3
        if item.data:
            count += 1
        if item.parameters is not UNSET:
            count += 2
    if document.id is not UNSET:
        count += 1
    if document.parameters is not UNSET:
        count += 1 + len(document.parameters)
    if document.outputs is not UNSET:
        count += 1
        for output in document.outputs:
            count += 1
            parameters = output.parameters
            if parameters is not UNSET:
                count += 1 + (parameters.binary_data is not UNSET) + (parameters.classification is not UNSET)
    return count


def _colons_in_strings(document: InferDocument) -> int:
    """How many colons the strings have that were read, beside elements."""
    count = 0
    for item in document.inputs:
        count += item.name.count(":")
    if document.id is not UNSET:
        count += document.id.count(":")
    if document.parameters is not UNSET:
        for name, value in document.parameters.items():
            count += name.count(":")
            if isinstance(value, str):
                count += value.count(":")
    if document.outputs is not UNSET:
        for output in document.outputs:
            count += output.name.count(":")
    return count
