"""Long work in steps, so that it can be done beside everything else or at once.

Work in steps is a generator. It yields None where it may be interrupted, at least every few tenths of a millisecond;
it yields a function where that can run in a thread, because it lets go of the interpreter's lock (zlib, numpy's
sorting), and gets the function's result back, or has raised there what the function raised. What it returns is the
result of the work.

`finish` does all of it at once, for small work; `protocols.offload.Offload` does it beside the event loop's other work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

LongWork = Generator[Callable[[], Any] | None, Any, T]


def finish(work: LongWork[T]) -> T:
    """The result, with everything done here and now."""
    try:
        wanted = next(work)
        while True:
            try:
                made = None if wanted is None else wanted()
            except Exception as error:
                wanted = work.throw(error)
            else:
                wanted = work.send(made)
    except StopIteration as end:
        result: T = end.value
        return result
