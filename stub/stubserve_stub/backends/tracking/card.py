from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card

CARDS = (
    Card(
        "tracking",
        "stubserve_stub.backends.tracking.backend:TrackingBackend",
        in_environments=True,
        devices=ON_CPUS,
        server_keeps_states=True,
        package="scipy",
        extra="tracking",
        checks_config="stubserve_stub.backends.tracking.options:check",
    ),
)
