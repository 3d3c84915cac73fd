"""Tokens of one language model, and when they come: OpenAI's routes count them, metrics and the page show them."""

# Compiled by mypyc.
from __future__ import annotations

import time

from stubserve.inference.latencies import Histogram

# Upper bounds, in seconds
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_WHOLE_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class TokenCounts:
    """`prompt`, `generation` and `cached` are numbers of tokens that the model has told, the last of them parts of
    prompts that it did not have to compute; None if it has told none. The histograms are of seconds.
    """

    def __init__(self) -> None:
        self.prompt = 0
        self.generation = 0
        self.cached: int | None = None
        self.first = Histogram(_FIRST_S)
        self.between = Histogram(_BETWEEN_S)
        self.whole = Histogram(_WHOLE_S)

    def add(self, prompt: int, generation: int, cached: int | None = None) -> None:
        """Counts tokens that the model tells."""
        self.prompt += max(prompt, 0)
        self.generation += max(generation, 0)
        if cached is not None:
            self.cached = (self.cached or 0) + max(cached, 0)

    def count_piece(self, start_ns: int, last_ns: int) -> int:
        """Counts a piece of an answer that comes now, and returns the time: the first one if `last_ns` is 0."""
        now_ns = time.monotonic_ns()
        if last_ns:
            self.between.observe((now_ns - last_ns) / 1e9)
        else:
            self.first.observe((now_ns - start_ns) / 1e9)
        return now_ns

    def count_answer(self, start_ns: int) -> None:
        """Counts an answer that ends now."""
        self.whole.observe((time.monotonic_ns() - start_ns) / 1e9)
