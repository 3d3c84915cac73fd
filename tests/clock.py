"""The time of a test's own: a clock, and the timers of an event loop that go by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class Timer:
    """A callback that is due at a time."""

    def __init__(self, at: float, callback: Callable[[], object], timers: list[Timer]) -> None:
        self.at = at
        self.callback = callback
        self._timers = timers
        timers.append(self)

    def cancel(self) -> None:
        if self in self._timers:
            self._timers.remove(self)


class Clock:
    """In `turns` the loop runs its timers; where it `stands` it is busy with something else. `timers` are pending."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return Timer(self.now + delay, callback, self.timers)

    def turns(self, seconds: float) -> None:
        end = self.now + seconds
        for timer in self._due(end):
            self.now = max(self.now, timer.at)
            timer.callback()
        self.now = end

    def stands(self, seconds: float) -> None:
        self.now += seconds

    def _due(self, end: float) -> Iterator[Timer]:
        while self.timers and min(self.timers, key=lambda timer: timer.at).at <= end:
            timer = min(self.timers, key=lambda timer: timer.at)
            timer.cancel()
            yield timer
