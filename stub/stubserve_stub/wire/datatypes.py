"""The data types of the protocol: their names, Triton's numbers for them, their sizes, their numpy types."""

from __future__ import annotations

from typing import Dict, Iterable, NamedTuple, Optional, Sequence

import numpy as np


class DataType(NamedTuple):
    """One data type. `itemsize` is in bytes, 0 for BYTES; `numpy` is None where numpy has no such type (BF16)."""

    number: int
    name: str
    config_name: str
    itemsize: int
    numpy: Optional[np.dtype]


def _table() -> Dict[int, DataType]:
    rows = [
        (1, "BOOL", "TYPE_BOOL", 1, np.dtype(np.bool_)),
        (2, "UINT8", "TYPE_UINT8", 1, np.dtype(np.uint8)),
        (3, "UINT16", "TYPE_UINT16", 2, np.dtype(np.uint16)),
        (4, "UINT32", "TYPE_UINT32", 4, np.dtype(np.uint32)),
        (5, "UINT64", "TYPE_UINT64", 8, np.dtype(np.uint64)),
        (6, "INT8", "TYPE_INT8", 1, np.dtype(np.int8)),
        (7, "INT16", "TYPE_INT16", 2, np.dtype(np.int16)),
        (8, "INT32", "TYPE_INT32", 4, np.dtype(np.int32)),
        (9, "INT64", "TYPE_INT64", 8, np.dtype(np.int64)),
        (10, "FP16", "TYPE_FP16", 2, np.dtype(np.float16)),
        (11, "FP32", "TYPE_FP32", 4, np.dtype(np.float32)),
        (12, "FP64", "TYPE_FP64", 8, np.dtype(np.float64)),
        (13, "BYTES", "TYPE_STRING", 0, np.dtype(np.object_)),
        (14, "BF16", "TYPE_BF16", 2, None),
    ]
    return {row[0]: DataType(*row) for row in rows}


BY_NUMBER = _table()
BY_NAME = {kind.name: kind for kind in BY_NUMBER.values()}
BY_CONFIG_NAME = {kind.config_name: kind for kind in BY_NUMBER.values()}

BYTES = 13
BF16 = 14
FP16 = 10
BOOL = 1


def name_of(datatype: int) -> str:
    """The name of a type by its number, as upstream prints it for a number that means none."""
    return BY_NUMBER[datatype].name if datatype in BY_NUMBER else "<invalid>"


def shape_text(dims: Iterable[int]) -> str:
    """Dimensions as upstream prints them."""
    return f"[{','.join(map(str, dims))}]"


def elements_of(shape: Sequence[int]) -> int:
    elements = 1
    for dim in shape:
        elements *= dim
    return elements


def nbytes_of(datatype: int, shape: Sequence[int]) -> int:
    """The size of a tensor; for BYTES that of empty strings, which are just their lengths of 4 bytes."""
    return elements_of(shape) * (BY_NUMBER[datatype].itemsize or 4)


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a shape is one that these dimensions allow, of which -1 allows any size."""
    return len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape))
