"""The time of a test's own: a clock, and the timers of an event loop that go by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class Clock:
    """In `turns` the loop runs its timers; where it `stands` it is busy with something else."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        self._timers.append((self.now + delay, callback))
        return callback

    def turns(self, seconds: float) -> None:
        end = self.now + seconds
        for at, callback in self._due(end):
            self.now = max(self.now, at)
            callback()
        self.now = end

    def stands(self, seconds: float) -> None:
        self.now += seconds

    def _due(self, end: float) -> Iterator[tuple[float, Callable[[], object]]]:
        while self._timers and min(self._timers, key=lambda timer: timer[0])[0] <= end:
            timer = min(self._timers, key=lambda timer: timer[0])
            self._timers.remove(timer)
            yield timer
