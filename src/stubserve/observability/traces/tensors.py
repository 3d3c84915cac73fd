"""The tensors of a trace as upstream's files show them: all elements, as one text.

Not compiled: a large tensor takes long, and compiled code would keep the interpreter's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.inference.trace import TensorCopy


def shown(copy: TensorCopy) -> dict[str, str]:
    datatype = BY_NUMBER[copy.datatype]
    return {
        "name": copy.name,
        "data": ",".join(_elements(copy)),
        "shape": ",".join(map(str, copy.shape)),
        "dtype": datatype.name,
    }


def _elements(copy: TensorCopy) -> Iterator[str]:
    if copy.datatype == BYTES:
        if len(copy.data) < copy.nbytes:
            return iter(())  # cut in the middle of a string, maybe
        return _strings(copy.data)
    kind = BY_NUMBER[copy.datatype].numpy
    if kind is None:
        return iter(())
    data = copy.data[: len(copy.data) // kind.itemsize * kind.itemsize]
    values = np.frombuffer(data, kind).tolist()
    return (f"{value:.6g}" if isinstance(value, float) else str(int(value)) for value in values)


def _strings(data: bytes) -> Iterator[str]:
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield f'"{data[at + 4 : end].decode("utf-8", "replace")}"'
        at = end
