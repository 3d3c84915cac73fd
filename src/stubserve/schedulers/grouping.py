"""Which requests may share a batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stubserve.inference.request import Request


class Grouping:
    """The inputs in which all requests of one batch must be equal.

    `variable` inputs have a dimension of -1 and do not allow ragged batches: their shapes without the batch dimension
    must be equal. `shape_tensors` must be equal in shape and values. With `optional_inputs` all requests must give the
    same inputs.
    """

    __slots__ = ("_optional_inputs", "_shape_tensors", "_variable")

    def __init__(
        self, variable: Collection[str] = (), shape_tensors: Collection[str] = (), optional_inputs: bool = False
    ) -> None:
        self._variable = frozenset(variable)
        self._shape_tensors = frozenset(shape_tensors)
        self._optional_inputs = optional_inputs

    @classmethod
    def from_config(cls, config: Any) -> Grouping:
        """What a `ModelConfig` message demands."""
        shape_tensors = [i.name for i in config.input if i.is_shape_tensor]
        variable = [i.name for i in config.input if -1 in i.dims and not i.allow_ragged_batch]
        return cls(variable, shape_tensors, any(i.optional for i in config.input))

    @property
    def trivial(self) -> bool:
        """Whether any two requests may share a batch."""
        return not (self._variable or self._shape_tensors or self._optional_inputs)

    def key(self, request: Request) -> dict[str, object]:
        """Requests with equal keys may share a batch. Only for requests with a batch dimension.

        It is made once, when the request is queued or later: until it has run, nothing of that changes.
        """
        key = request.grouping_key
        if key is None:
            key = request.grouping_key = self._made(request)
        return key

    def _made(self, request: Request) -> dict[str, object]:
        key: dict[str, object] = {}
        for tensor in request.inputs:
            name = tensor.name
            if name in self._shape_tensors:
                key[name] = (tuple(tensor.shape), bytes(tensor.buffer))
            elif name in self._variable:
                key[name] = tuple(tensor.shape[1:])
            elif self._optional_inputs:
                key[name] = None
        return key
