from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card

CARDS = (Card("identity", "stubserve_stub.backends.identity.backend:IdentityBackend", devices=ON_CPUS),)
