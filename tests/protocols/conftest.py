"""Fixtures of what protocols share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from stubserve.protocols import loop_time, stall

from .clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_time, "monotonic", clock)
    monkeypatch.setattr(stall, "monotonic", clock)
    loop = SimpleNamespace(get_running_loop=lambda: clock, TimerHandle=asyncio.TimerHandle)
    monkeypatch.setattr(loop_time, "asyncio", loop)
    return clock
