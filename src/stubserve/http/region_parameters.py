"""The body of a request that registers a region of shared memory."""

from __future__ import annotations

from stubserve.errors import internal, invalid
from stubserve.http.json.values import UNSET, find, is_uint, parse_json


def parse_region(body: bytes) -> tuple[str, int, int]:
    """Key, offset and size of a region. Raises ServeError, with upstream's texts."""
    document = parse_json(body)
    key = find(document, "key")
    if key is UNSET:
        raise invalid("Shared memory register request has no 'key' field")
    if not isinstance(key, str):
        raise internal("attempt to access JSON non-string as string")
    offset = find(document, "offset")
    offset = 0 if offset is UNSET else _size(offset)
    nbytes = find(document, "byte_size")
    if nbytes is UNSET:
        raise invalid("Shared memory register request has no 'byte_size' field")
    return key, offset, _size(nbytes)


def _size(value: object) -> int:
    if not is_uint(value):
        raise internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
    assert isinstance(value, int)
    return value
