"""Sequences that run at once, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

# A step of a sequence: its number and flag ("start", "" or "end"); what is answered
Step = Callable[[int, str], int]


def check_sums(step: Step, numbers: Iterable[int], steps: int) -> None:
    """Each of the sequences sends its number so many times, and is answered the sum so far, as it would be alone."""
    flags = ["start", *[""] * (steps - 2), "end"]

    def run(number: int) -> Sequence[int]:
        return [step(number, flag) for flag in flags]

    numbers = list(numbers)
    with ThreadPoolExecutor(len(numbers)) as pool:
        found = dict(zip(numbers, pool.map(run, numbers), strict=True))
    assert found == {number: [number * sent for sent in range(1, steps + 1)] for number in numbers}
