"""Shapes between models that batch and models that do not.

As upstream: a tensor of a model without batching gets a batch dimension of 1 on its way into a model that batches, if
its shape is that of one item; a batch of one loses it on its way into a model that does not, if only that makes it fit.
Everything else goes on as it is, and is for the next model to accept or refuse.
"""

from __future__ import annotations

from collections.abc import Sequence


def fit(shape: Sequence[int], is_batch: bool, dims: Sequence[int], wants_batch: bool) -> Sequence[int]:
    """`shape` as a model of the other kind takes it; `dims` are those of its configuration, without a batch."""
    if is_batch == wants_batch:
        return shape
    if wants_batch:
        return (1, *shape) if _matches(shape, dims) else shape
    if len(shape) == len(dims) + 1 and shape[0] == 1:
        return tuple(shape[1:])
    return shape


def _matches(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
