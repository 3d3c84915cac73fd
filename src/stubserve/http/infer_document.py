"""The JSON of an inference request as typed objects, made by msgspec in one go: under a microsecond for two inputs.

The types (`infer_structs`) say what a usual request is made of, and nothing else is let in. Whatever does not fit is
None here, and is for `infer_json` to read, which knows upstream's rules for the odd and upstream's words for the wrong.
What fits means the same to both, but for names that occur twice in one object: msgspec takes the last of them, upstream
the first. So the members that were read are counted, and have to be as many as the text has colons outside of strings.
A name that was dropped leaves a colon behind, whatever its value was, so no such text can pass.

Nearly all of a long text are elements, which are read where they become bytes (`json_data`). So their lists are cut
out, and what is left is read with an empty list in each place: if that is a usual request, and what was cut out are
lists, then the whole text is one, and means both together.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from stubserve.http import infer_structs
from stubserve.http.infer_structs import InferDocument
from stubserve.http.json.values import ESCAPED_COLON

# From this length on it pays to read what is not elements by itself
_LONG = 1024
_KEY = b'"data":'
# What stands in the place of elements that have been cut out
_EMPTY = b"[]"


def read(text: bytes, most: int) -> InferDocument | None:
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
