"""Between the bytes of inputs and outputs and torch's tensors, without a copy."""

from __future__ import annotations

import warnings
from typing import Any, Dict, Optional, Sequence

import numpy as np

from stubserve_stub.wire.datatypes import BF16, BY_NUMBER, BYTES

_TORCH_NAMES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}
# numpy has no BF16; torch looks at these as what they are.
_SIXTEEN_BITS = np.dtype(np.int16)


class Tensors:
    """Makes tensors out of memory, and finds the memory of tensors. `torch` is the package."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._bfloat16 = torch.bfloat16
        self._int16 = torch.int16
        # Older versions of torch have no unsigned integers but of 8 bits.
        types = {
            number: getattr(torch, _TORCH_NAMES.get(kind.name, kind.name.lower()), None)
            for number, kind in BY_NUMBER.items()
            if number != BYTES
        }
        self._numbers: Dict[Any, int] = {dtype: number for number, dtype in types.items() if dtype is not None}
        self._numpy: Dict[int, Any] = {number: BY_NUMBER[number].numpy or _SIXTEEN_BITS for number in types}
        with warnings.catch_warnings():
            # torch warns once in a process of memory that is read-only. What only reads it is given it as it is.
            warnings.simplefilter("ignore")
            read_only = np.zeros(1, np.uint8)
            read_only.flags.writeable = False
            torch.from_numpy(read_only)

    def has(self, datatype: int) -> bool:
        """Whether there are tensors of this type."""
        return datatype in self._numbers.values()

    def number_of(self, dtype: Any) -> Optional[int]:
        """The number of a type of torch's, None for those that the protocol has not."""
        return self._numbers.get(dtype)

    def over(self, memory: Any, datatype: int, shape: Sequence[int]) -> Any:
        """A tensor over memory, an array of uint8, which it keeps alive."""
        tensor = self._torch.from_numpy(memory.view(self._numpy[datatype]).reshape(shape))
        return tensor.view(self._bfloat16) if datatype == BF16 else tensor

    def memory_of(self, tensor: Any) -> Any:
        """The bytes of a tensor of a known type in C order, as an array of uint8; its own memory if it has them so."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.is_cpu:
            tensor = tensor.cpu()
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if tensor.dtype is self._bfloat16:
            tensor = tensor.view(self._int16)
        return tensor.numpy().reshape(-1).view(np.uint8)
