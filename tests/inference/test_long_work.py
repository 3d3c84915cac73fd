"""Work in steps on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from stubserve.inference import long_work as offload
from stubserve.inference.long_work import LongWork, Offload, finish


def numbers(count: int, seen: list[int]) -> LongWork[int]:
    """Work of many steps; each notes that it was done."""
    for number in range(count):
        seen.append(number)
        yield None
    return count


def in_thread(seen: list[Any]) -> LongWork[str]:
    """Work that lets a function run elsewhere."""
    yield None
    name: str = yield lambda: threading.current_thread().name
    seen.append(name)
    return name


def failing() -> LongWork[None]:
    yield None
    raise ValueError("no")


def test_at_once() -> None:
    assert finish(numbers(3, [])) == 3
    assert finish(in_thread([])) == threading.current_thread().name
    with pytest.raises(ValueError, match="no"):
        finish(failing())


def test_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each slice is over at once, so each step is a slice of its own.
    monkeypatch.setattr(offload, "SLICE_S", 0.0)

    async def run() -> None:
        one, other, passes = [], [], []

        async def count_passes() -> None:
            while True:
                passes.append(len(one) + len(other))
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count_passes())
        work = Offload()
        assert await asyncio.gather(work.run(numbers(50, one)), work.run(numbers(50, other))) == [50, 50]
        counting.cancel()
        # Never did one pass of the loop do more than one step of all the work.
        assert max(after - before for before, after in pairwise(passes)) == 1
        assert (await work.run(in_thread([]))).startswith("offload")
        with pytest.raises(ValueError, match="no"):
            await work.run(failing())
        work.close()

    asyncio.run(run())


def test_what_a_function_raises_is_raised_in_the_work() -> None:
    """There it can be made an answer, as where all is done at once; what it knows goes without the collector."""

    class Memory:
        def fail(self) -> None:
            raise ValueError("gone")

    def work(memory: Memory) -> LongWork[str]:
        try:
            yield memory.fail
        except ValueError as error:
            return str(error)
        return ""

    def not_caught(memory: Memory) -> LongWork[str]:
        yield memory.fail
        return ""

    async def run() -> None:
        offload = Offload()
        memory = Memory()
        refers = weakref.ref(memory)
        gc.disable()
        try:
            assert await offload.run(work(memory)) == "gone"
            with contextlib.suppress(ValueError):
                await offload.run(not_caught(memory))
            del memory
            await asyncio.sleep(0)  # until then the loop has what woke it, and a thread what it has done
            offload.close()
            for thread in threading.enumerate():
                if thread.name.startswith("offload"):
                    thread.join()
            assert refers() is None
        finally:
            gc.enable()

    assert finish(work(Memory())) == "gone"
    asyncio.run(run())


def test_threads_have_the_loops_own_priority() -> None:
    """They share the interpreter's lock with it: who is put aside while he has it keeps the loop waiting."""

    def work() -> LongWork[int]:
        return (yield lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    async def run() -> int:
        offload = Offload()
        try:
            return await offload.run(work())
        finally:
            offload.close()

    assert asyncio.run(run()) == os.getpriority(os.PRIO_PROCESS, 0)


def test_whoever_acts_in_turn_shares_the_passes_with_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SLICE_S", 0.0)

    async def run() -> None:
        seen, acted = [], []
        work = Offload()
        assert not work.busy
        working = asyncio.ensure_future(work.run(numbers(10, seen)))
        for number in range(10):
            work.in_turn(partial(acted.append, number))
        assert work.busy
        before = 0
        while not working.done():
            await asyncio.sleep(0)
            now = len(seen) + len(acted)
            assert now - before <= 1
            before = now
        assert acted == list(range(10))
        assert not work.busy

    asyncio.run(run())


def test_a_slice_is_as_long_as_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "perf_counter", lambda: 0.0)

    async def run() -> None:
        seen: list[int] = []
        work = asyncio.ensure_future(Offload().run(numbers(1000, seen)))
        passes = 0
        while not work.done():
            passes += 1
            await asyncio.sleep(0)
        assert await work == len(seen) == 1000
        assert passes < 10  # the clock stood still, so there was one slice

    asyncio.run(run())


def test_cancelled_work_is_closed_and_others_go_on() -> None:
    async def run() -> None:
        begun, closed = asyncio.Event(), asyncio.Event()

        def endless() -> LongWork[None]:
            try:
                while True:
                    begun.set()
                    yield None
            finally:
                closed.set()

        work = Offload()
        hanging = asyncio.ensure_future(work.run(endless()))
        other = asyncio.ensure_future(work.run(endless()))
        await begun.wait()
        hanging.cancel()
        await closed.wait()
        assert await work.run(numbers(1000, [])) == 1000
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other

    asyncio.run(run())


def test_cancelled_work_is_over_when_its_thread_is() -> None:
    """What a thread reads and writes is somebody else's as soon as the work is over."""

    async def run() -> None:
        begun, may_end, seen = threading.Event(), threading.Event(), []

        def act() -> None:
            begun.set()
            may_end.wait()
            seen.append("acted")

        def one() -> LongWork[None]:
            try:
                yield act
            finally:
                seen.append("closed")

        work = Offload()
        hanging = asyncio.ensure_future(work.run(one()))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        for _ in range(3):  # however often
            hanging.cancel()
            assert await work.run(numbers(10, [])) == 10
        assert not hanging.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert seen == ["acted", "closed"]
        work.close()

    asyncio.run(run())
