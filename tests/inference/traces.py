"""Who takes traces, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stubserve.inference.trace import Sampler, Trace


class Collected(Sampler):
    """Samples every call, and keeps the trees of traces that come of it."""

    tensors = True

    def __init__(self, tensor_bytes: int = 0, spans: bool = False) -> None:
        self.tensor_bytes = tensor_bytes
        self.spans = spans
        self.trees: list[Sequence[Trace]] = []

    def sample(self, model: str, version: int, protocol: str, context: Callable[[], str | None]) -> Trace | None:
        return Trace(self, model, version, protocol, 1)

    def collect(self, tree: Sequence[Trace]) -> None:
        self.trees.append(tree)
