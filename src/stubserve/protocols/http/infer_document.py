"""The JSON of an inference request as typed objects, made by msgspec in one go: under a microsecond for two inputs.

The types (`infer_structs`) say what a usual request is made of, and nothing else is let in. Whatever does not fit is
None here, and is for `infer_json` to read, which knows upstream's rules for the odd and upstream's words for the wrong.
What fits means the same to both, but for names that occur twice in one object: msgspec takes the last of them, upstream
the first. So the members that were read are counted, and have to be as many as the text has colons outside of strings.
A name that was dropped leaves a colon behind, whatever its value was, so no such text can pass.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from stubserve.protocols.http import infer_structs
from stubserve.protocols.http.infer_structs import InferDocument
from stubserve.protocols.http.json_values import ESCAPED_COLON

# From this length on it pays to look for colons in what is not data only
_LONG = 1024
# So much of an input's data is looked for in a text
_FRONT = 32


def read(text: bytes) -> InferDocument | None:
    """The request in a JSON text; None where it is not a usual one, or none at all."""
    try:
        document = infer_structs.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    members = _members(document)
    if len(text) < _LONG and text.count(b":") == members:
        return document
    colons = _colons_beside_data(text, document) - members
    # Where one is escaped, a string has more of them than its text.
    if colons and (ESCAPED_COLON in text or colons != _colons_in_strings(document)):
        return None
    return document


def _colons_beside_data(text: bytes, document: InferDocument) -> int:
    """How many colons a text has, but for those among the elements of its inputs."""
    if len(text) < _LONG:
        count = text.count(b":")
        for item in document.inputs:
            count -= bytes(item.data).count(b":")
        return count
    # Nearly all of a long text are elements. What is cut out may lie before an input's own place, but only if it reads
    # the same, so the same characters are left.
    count = at = 0
    for item in document.inputs:
        data = bytes(item.data)
        if data:
            start = text.find(data[:_FRONT], at)
            if not text.startswith(data, start):
                start = text.find(data, start)
            count += text.count(b":", at, start)
            at = start + len(data)
    return count + text.count(b":", at)


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
