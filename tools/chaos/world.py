"""What clients and troubles share: the server that there is now, and whether it is to be asked."""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# A request that takes longer hangs.
ANSWER_WITHIN_S = 30.0
# A process that has not run for so long was stopped, or the machine was.
STILL_S = 5.0
PULSE_S = 0.5


class Wrong(Exception):
    """A success whose content does not follow from its request."""


class Refused(Exception):
    """An answer that is an error, with its reason."""


class Pulse(threading.Thread):
    """Knows when this process did not run at all: what is due then tells nothing of the server."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._last = time.monotonic()
        self._stood_still_until = 0.0

    def run(self) -> None:
        while True:
            time.sleep(PULSE_S)
            self.beat(time.monotonic())

    def beat(self, now: float) -> None:
        if now - self._last > STILL_S:
            self._stood_still_until = now
        self._last = now

    def stood_still_since(self, begin: float, now: float) -> bool:
        return self._stood_still_until > begin or now - self._last > STILL_S


@dataclass
class World:
    """`generation` grows with every end and every start of a server; it is odd while there is none."""

    http_port: int = 0
    grpc_port: int = 0
    generation: int = 1
    go: threading.Event = field(default_factory=threading.Event)
    over: bool = False
    faults: list[str] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)

    def fault(self, text: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S')} {text}")


class Client(threading.Thread):
    """Asks without pause, as long as it may. `tally` is what became of its requests."""

    # How long it is idle between two requests.
    pause_s = 0.01

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(daemon=True, name=f"{type(self).__name__} {seed}")
        self.world = world
        self.seed = seed
        self.tally: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.idle = threading.Event()

    def ask(self) -> None:
        """One request. Raises Wrong, Refused, TimeoutError, and OSError where the connection is lost."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Closes its connection."""

    def whereabouts(self) -> str:
        """The lines that it is at, the innermost first."""
        frame = sys._current_frames().get(self.ident or 0)
        lines = traceback.extract_stack(frame)[::-1] if frame is not None else []
        return " < ".join(f"{Path(line.filename).name}:{line.lineno} {line.name}" for line in lines[:8])

    def run(self) -> None:
        world = self.world
        while not world.over:
            if not world.go.is_set():
                self.hang_up()
                self.idle.set()
                world.go.wait()
                self.idle.clear()
                continue
            self._ask_once()
            time.sleep(self.pause_s)
        self.hang_up()

    def _ask_once(self) -> None:
        world = self.world
        generation = world.generation
        begin = time.monotonic()
        try:
            self.ask()
            self.tally["right"] += 1
        except Wrong as error:
            self.tally["wrong"] += 1
            world.fault(f"{self.name}: wrong: {error}")
        except Refused as error:
            self.tally["refused"] += 1
            self.reasons[re.sub(r"[0-9]+", "N", str(error))[:160]] += 1
            self.hang_up()
        except TimeoutError:
            if world.pulse.stood_still_since(begin, time.monotonic()):
                self.tally["stood still"] += 1
            else:
                self.tally["hung"] += 1
                world.fault(f"{self.name}: no end of a request within {ANSWER_WITHIN_S:.0f} s")
            self.hang_up()
        except OSError as error:
            self.hang_up()
            if generation % 2 == 0 and generation == world.generation:
                self.tally["lost"] += 1
                world.fault(f"{self.name}: a connection was lost although nobody ended the server: {error!r}")
            else:
                self.tally["lost with the server"] += 1
        except Exception as error:
            self.tally["wrong"] += 1
            world.fault(f"{self.name}: an answer that makes no sense: {error!r}")
            self.hang_up()
