"""The watch over the machine's memory as a part of the server; with `--shed-on-memory-pressure` it refuses requests."""

from __future__ import annotations

from collections.abc import Iterable

from stubserve.errors import overloaded
from stubserve.inference.served_model import ServedModel
from stubserve.observability.memory_pressure.watch import MemoryPressure
from stubserve.parts import Find, Part, Sample
from stubserve.settings.groups import Settings


class PressurePart(Part):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._pressure = MemoryPressure(settings.shed_on_memory_pressure)
        self._shed = 0

    async def start(self) -> None:
        self._pressure.start()

    async def close(self) -> None:
        self._pressure.close()

    def samples(self) -> Iterable[Sample]:
        yield "stubserve_memory_pressure", (), float(self._pressure.is_high)
        yield "stubserve_requests_shed_total", (), self._shed

    def finder(self, find: Find) -> Find:
        if not self.settings.shed_on_memory_pressure:
            return find

        def find_unless_short(name: str, version: str) -> ServedModel:
            model = find(name, version)
            if self._pressure.is_high:
                self._shed += 1
                raise overloaded("memory is short on this machine; try again later (--shed-on-memory-pressure)")
            return model

        return find_unless_short


PART = PressurePart
