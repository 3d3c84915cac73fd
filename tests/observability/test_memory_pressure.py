"""Events of want of memory: heard, said once a minute, and over after a time. The kernel's part is a socket's here."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from stubserve.observability.memory_pressure import watch as memory_pressure
from stubserve.observability.memory_pressure.watch import PRESSED_S, MemoryPressure
from tests.real_server import PATIENCE_S


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_events(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Urgent data of a socket are the same event to epoll as a trigger of the kernel's."""
    now = 1000.0
    monkeypatch.setattr(memory_pressure, "monotonic", lambda: now)

    async def run() -> None:
        nonlocal now
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        pressure = MemoryPressure(sheds=True)
        with theirs, ours:
            pressure.watch(os.dup(ours.fileno()))
            await _turns()
            assert not pressure.is_high
            for _ in range(2):
                heard = pressure._until
                theirs.send(b"!", socket.MSG_OOB)
                while pressure._until == heard:  # noqa: ASYNC110  # there is nothing else to wait for
                    await asyncio.sleep(0.001)
                assert pressure.is_high
                now += PRESSED_S
                assert not pressure.is_high
            pressure.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert caplog.text.count("new requests to models are refused for a while") == 1


def test_a_kernel_that_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        for sheds in (False, True):
            pressure = MemoryPressure(sheds)
            pressure.start(tmp_path / "nosuch")
            assert not pressure.is_high
            pressure.close()

    asyncio.run(run())
    assert caplog.text.count("--shed-on-memory-pressure has no effect") == 1


@pytest.mark.skipif(not os.access("/proc/pressure/memory", os.W_OK), reason="this kernel tells nothing")
def test_the_kernels_own_file() -> None:
    async def run() -> None:
        pressure = MemoryPressure(sheds=False)
        pressure.start()
        assert pressure._events is not None
        await _turns()
        pressure.close()

    asyncio.run(run())
