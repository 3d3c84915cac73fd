"""What numpy's arrays are to Triton: data types, and how much room the outputs of a model need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

# Output -> the largest shape that it may have; None for what the configuration says
Shapes = Mapping[str, tuple[int, ...] | None]


class ModelTensors(NamedTuple):
    """What a model's configuration says of inputs and outputs: (data type, dims), with -1 for a dim that varies."""

    batched: bool
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelTensors:
        """`config` as HTTP or gRPC shows it, where numbers are texts."""
        inputs, outputs = (
            {
                row["name"]: (row["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"), _dims(row))
                for row in config.get(kind, [])
            }
            for kind in ("input", "output")
        )
        return cls(int(config.get("max_batch_size", 0)) > 0, inputs, outputs)

    def as_input(self, name: str, given: ArrayLike) -> np.ndarray:
        """An input in the type that the model takes; a single value in as many dimensions as it takes.

        Floats may be rounded to shorter ones. Raises ValueError where more would be lost.
        """
        array = np.asarray(given)
        if name not in self.inputs:
            return array
        datatype, dims = self.inputs[name]
        if array.ndim == 0:
            array = array.reshape((1,) * (len(dims) + self.batched))
        if datatype == "BYTES":
            return array.astype(object) if array.dtype.kind == "U" else array
        wanted = np.dtype(triton_to_np_dtype(datatype) or object)
        kind = array.dtype.kind
        if array.dtype == wanted or datatype == "BF16" or kind not in "biuf" or wanted.kind not in "biuf":
            return array
        with np.errstate(all="ignore"):
            made = array.astype(wanted)
            back = made.astype(array.dtype)
        if kind == "f" and wanted.kind == "f":
            lost = np.isfinite(array) & ~np.isfinite(made)
        else:
            lost = (back != array) | ((made < 0) != (array < 0))
        if lost.any():
            raise ValueError(f"input '{name}' takes {datatype}, which {array[lost][0]} is not")
        return made

    def nbytes(self, name: str, shape: tuple[int, ...] | None, batch: int) -> int:
        """How many bytes an output has at most; 0 if nobody knows. `shape` is what the caller says, with the batch."""
        if name not in self.outputs:
            return 0
        datatype, dims = self.outputs[name]
        shape = shape or ((batch, *dims) if self.batched else dims)
        dtype = np.dtype(triton_to_np_dtype(datatype) or object)
        # tritonclient has widened bfloat16 until 2.60, and strings are objects.
        if has_no_size(dtype) or (datatype == "BF16" and dtype.itemsize != 2) or min(shape, default=0) < 0:
            return 0
        return math.prod(shape) * dtype.itemsize


def _dims(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, row["dims"]))


def sizes(
    outputs: Iterable[str] | Shapes | None, known: ModelTensors | None, inputs: Iterable[np.ndarray]
) -> dict[str, int] | None:
    """Output -> how many bytes it has at most, 0 if nobody knows; None for whatever outputs the model has."""
    if known is None:
        return None if outputs is None else dict.fromkeys(outputs, 0)
    if not isinstance(outputs, Mapping):
        outputs = dict.fromkeys(known.outputs if outputs is None else outputs)
    batch = next((array.shape[0] for array in inputs if array.ndim), -1)
    return {name: known.nbytes(name, shape, batch) for name, shape in outputs.items()}


def datatype_of(name: str, array: np.ndarray) -> str:
    """Triton's data type of an input. Raises TypeError."""
    datatype: str | None = np_to_triton_dtype(array.dtype)
    if datatype is None:
        raise TypeError(
            f"input '{name}' has the dtype {array.dtype}, which no data type of Triton stands for. Convert it first; "
            "strings are arrays of bytes or of objects"
        )
    return datatype


def has_no_size(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this type are strings, each of which has its own length."""
    return dtype.kind in "OSU"


def answered(result: Any) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """(name, dtype, shape) of the outputs in a result of tritonclient."""
    response = result.get_response()
    if isinstance(response, dict):
        rows = [(row["name"], row["datatype"], row["shape"]) for row in response.get("outputs", [])]
    else:
        rows = [(row.name, row.datatype, row.shape) for row in response.outputs]
    return [(name, np.dtype(triton_to_np_dtype(datatype)), tuple(shape)) for name, datatype, shape in rows]
