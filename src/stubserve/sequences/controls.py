"""The control inputs. They tell a model the place of a request in its sequence, and the empty slots of a batch."""

# Compiled by mypyc.
from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER, BYTES
from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.inference.tensor import Tensor
from stubserve.sequences.slots import SequenceSlot

_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
_CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"
# The format of a control's false and true values, and the type of its tensor, by the field with the values
_VALUES = {"int32_false_true": ("<i", "INT32"), "fp32_false_true": ("<f", "FP32"), "bool_false_true": ("<?", "BOOL")}
_BOTH = SEQUENCE_START | SEQUENCE_END


class Controls:
    """The controls of one model: a tensor of one element for each that its configuration names.

    Made from a validated `ModelConfig`. Tensors that are the same for many requests are the same object.
    """

    def __init__(self, config: Any) -> None:
        self._shape = [1, 1] if config.max_batch_size else [1]
        self._correlation_id: tuple[str, int] | None = None
        kinds: dict[str, tuple[Tensor, Tensor]] = {}
        for given in config.sequence_batching.control_input:
            for control in given.control:
                kind = control.Kind.Name(control.kind)
                if kind == _CORRELATION_ID:
                    self._correlation_id = (given.name, control.data_type)
                else:
                    kinds[kind] = self._pair(given.name, control)
        self._empty = [kinds[kind][0] for kind in _KINDS if kind in kinds]
        self._by_flags = []
        for flags in range(_BOTH + 1):
            truths = (bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END), True)
            self._by_flags.append(
                [kinds[kind][truth] for kind, truth in zip(_KINDS, truths, strict=True) if kind in kinds]
            )

    def of(self, options: RequestOptions, slot: SequenceSlot) -> Sequence[Tensor]:
        """The tensors to add to the inputs of a request with these options.

        The slot remembers them, as its next request is likely to have the same.
        """
        correlation_id, flags = options.correlation_id, options.flags & _BOTH
        if self._correlation_id is None:
            return self._by_flags[flags]
        if not flags and slot.controls is not None and slot.controls[0] == correlation_id:
            return slot.controls[1]
        controls = [*self._by_flags[flags], self._id_tensor(*self._correlation_id, correlation_id)]
        if not flags:
            slot.controls = (correlation_id, controls)
        return controls

    def of_empty_slot(self, like: Request) -> Sequence[Tensor]:
        """The model's inputs for an empty slot: zeros in the shapes of `like`'s inputs, and READY false."""
        tensors = []
        for given in like.inputs:
            # An empty string is four zeros.
            nbytes = 4 * prod(given.shape) if given.datatype == BYTES else given.nbytes
            tensors.append(Tensor(given.name, given.datatype, given.shape, None, nbytes=nbytes))
        tensors += self._empty
        if self._correlation_id is not None:
            name, datatype = self._correlation_id
            tensors.append(self._id_tensor(name, datatype, "" if datatype == BYTES else 0))
        return tensors

    def _pair(self, name: str, control: Any) -> tuple[Tensor, Tensor]:
        for field, (form, datatype) in _VALUES.items():
            values = getattr(control, field)
            if values:
                number = BY_NAME[datatype].number
                false, true = (Tensor(name, number, self._shape, struct.pack(form, value)) for value in values)
                return false, true
        raise ValueError(f"control '{name}' has no values")

    def _id_tensor(self, name: str, datatype: int, correlation_id: int | str) -> Tensor:
        if isinstance(correlation_id, str):
            text = correlation_id.encode("utf-8", "surrogateescape")
            return Tensor(name, datatype, self._shape, struct.pack("<I", len(text)) + text)
        # As upstream: only the low bytes of a number that is too large for the control.
        itemsize = BY_NUMBER[datatype].itemsize
        whole = (correlation_id & (2**64 - 1)).to_bytes(8, "little")
        return Tensor(name, datatype, self._shape, whole[:itemsize])
