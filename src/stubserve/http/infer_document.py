"""The short way from the JSON of an inference request to the request: msgspec reads it as typed objects, in one go.

The types (`infer_structs`) are those of a usual request. For any other text the functions here return None, and
`infer_json` reads it, with upstream's rules for odd texts and upstream's error messages. Both read a text that fits in
the same way, with one exception: of a name that occurs twice in an object, msgspec takes the last and upstream the
first. So the members that were read are counted, and must be as many as the text has colons outside of strings. A
dropped name leaves a colon behind, so such a text never passes.

A long text is nearly all elements, which are read where they become bytes (`json.text`). So the lists of elements are
cut out, and the rest is read with an empty list in each place. If the rest is a usual request and each part cut out is
a list, the whole text is that request with those lists.

Two inputs take 5 µs. Only the forms of replies are remembered, so a request unlike all before costs no more.
"""

# Compiled by mypyc.
from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from stubserve_stub.wire.datatypes import BY_NAME, BYTES
from stubserve_stub.wire.options import NO_OPTIONS, RequestOptions

from stubserve.api.placement import SMALL_BYTES, BodyPlacer, ReplyFormat, Slot
from stubserve.api.request_options import PREFIX, RESERVED
from stubserve.errors import ServeError, invalid, malformed
from stubserve.http import infer_structs
from stubserve.http.infer_structs import InferDocument, Input
from stubserve.http.json import text as json_text
from stubserve.http.json.values import ESCAPED_COLON, as_bool, as_string, as_uint, is_int, is_uint
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor

# A million parameters would keep a hundred times the memory of their text.
MAX_PARAMETERS = 10_000
# The limit, for each model, of remembered ways to ask for outputs
FORMATS = 256
_ALL_JSON, _ALL_BINARY = ReplyFormat(None, False), ReplyFormat(None, True)
# From this length on it pays to cut out the elements and read the rest alone
_LONG = 1024
_KEY = b'"data":'
# Stands in the place of elements that are cut out
_EMPTY = b"[]"


def read(
    body: bytes | memoryview, text: bytes, signature: Signature, placer: BodyPlacer, max_input_size: int
) -> tuple[Request, ReplyFormat] | None:
    """The request of a body with the JSON `text`; None where `decode_json` must read it."""
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
    """The tensor of an input with its elements in JSON; None where anything about it is unusual."""
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
        found_strings = json_text.read_strings(data, elements)
        # Each string has a length of 4 bytes, and its text is no longer than its JSON.
        if found_strings is None or 4 * elements + len(data) > max_input_size:
            return None
        return placer.put_strings(item.name, item.shape, found_strings)
    found = json_text.read_plain(kind.number, data, elements)
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
    """The options that the parameters set, and whether outputs are binary by default. Raises ServeError."""
    if not isinstance(parameters, dict):
        raise malformed("failed to get request params.: attempt to get members for non-object")
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
        elif key.startswith(PREFIX):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        elif isinstance(value, str | bool) or is_int(value):
            others[key] = value
        elif isinstance(value, int | float):
            # Upstream reads an integer beyond a signed 64-bit number as a double.
            others[key] = float(value)
        else:
            raise invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    return RequestOptions(**options, parameters=others or None), binary


def _value(key: str, value: Any, types: tuple[str, ...]) -> Any:
    """The value of a parameter that has one of these types. Raises ServeError."""
    if "bool_param" in types:
        return as_bool(value, key)
    if "string_param" not in types:
        return as_uint(value, key)
    return value if "int64_param" in types and is_uint(value) else as_string(value, key)


def _document(text: bytes, most: int) -> InferDocument | None:
    """The request in a JSON text; None if it is not a usual request. Its model has `most` inputs.

    The elements of a long text are not read here: `json.text` finds out whether they are a list.
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
    """A text cut before and behind each list of elements: every second piece is a list. None if that is not easy.

    A key is known by its closing quote and colon, which stand in no string. A list ends at its first closing bracket; a
    list of strings at the last bracket that follows a quote. Where that is wrong, a piece is not a list, or the rest is
    not a request. Looking for a key among 32 texts takes 2 µs, so it is skipped for a model with one input.
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
    """The request in a text after its lists of elements were cut out; its elements stay text."""
    rest = _EMPTY.join(pieces[::2])
    try:
        document = infer_structs.decode(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    given = [item for item in document.inputs if item.data]
    # There are more if a key is spelled in another way, and fewer if an input has two keys `data`.
    if len(given) != len(pieces) // 2 or not _has_each_name_once(document, rest, rest.count(b":")):
        return None
    at = 1
    for item in given:
        item.data = msgspec.Raw(pieces[at])
        at += 2
    return document


def _has_each_name_once(document: InferDocument, text: bytes, colons: int) -> bool:
    """Whether no name of the document was dropped; `text` has so many `colons`, those in elements aside."""
    colons -= _members(document)
    # With an escaped colon a string has more colons than its text.
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
    """How many colons the strings of the document have, elements aside."""
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
