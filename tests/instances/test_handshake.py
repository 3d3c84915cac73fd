"""The handshake with a stub, told by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stubserve.environments.environment import Environment
from stubserve.instances.handshake import Handshake


@pytest.mark.parametrize("turns", range(5))
def test_whoever_gives_up_is_not_kept_by_what_the_stub_tells_meanwhile(turns: int) -> None:
    async def give_up() -> bool:
        nobody: Any = None  # the process is not looked at before something goes wrong
        handshake = Handshake(nobody, Environment())
        waiting = asyncio.create_task(handshake.imported())
        for _ in range(3):
            await asyncio.sleep(0)
        handshake.on_message({"kind": "imported", "completes_config": False})
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.done():
            return True
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return waiting.cancelled()

    assert asyncio.run(give_up())
