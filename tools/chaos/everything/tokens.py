"""The file of tokens of a server, which is written anew while it runs."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from ..world import World

# Good for nothing that anybody here asks it for.
GUEST = "a-guest-who-may-only-look"
# The server looks at the file once a second, when it is asked.
SEEN_WITHIN_S = 1.5
FORGOTTEN_WITHIN_S = 4.0


class Tokens:
    """Who may ask `world`'s server shows its `token`."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self._world = world
        world.token = _new()
        self._write(world.token)

    def change(self) -> None:
        """Another token: for a while both are good, then the old one is withdrawn."""
        old, new = self._world.token, _new()
        self._write(old, new)
        time.sleep(SEEN_WITHIN_S)
        self._world.token = new
        time.sleep(SEEN_WITHIN_S)
        self._write(new)
        self._world.withdrawn, self._world.withdrawn_at = old, time.monotonic()

    def _write(self, *tokens: str) -> None:
        text = "".join(f"{token}\n" for token in tokens) + f"{GUEST} health,metadata\n"
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


def _new() -> str:
    return f"chaotic-{uuid.uuid4().hex}"
