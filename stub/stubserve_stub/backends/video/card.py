from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card

CARDS = (
    Card(
        "video",
        "stubserve_stub.backends.video.backend:VideoBackend",
        in_environments=True,
        devices=ON_CPUS,
        package="av",
        extra="video",
        checks_config="stubserve_stub.backends.video.options:validate",
    ),
)
