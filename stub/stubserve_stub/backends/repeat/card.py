from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card

CARDS = (
    Card("repeat", "stubserve_stub.backends.repeat.backend:RepeatBackend", devices=ON_CPUS),
    Card("square", "stubserve_stub.backends.repeat.backend:SquareBackend", devices=ON_CPUS),
)
