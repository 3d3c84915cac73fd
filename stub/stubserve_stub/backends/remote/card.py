from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card

CARDS = (Card("remote", "stubserve_stub.backends.remote.backend:RemoteBackend", devices=ON_CPUS),)
