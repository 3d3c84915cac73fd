from __future__ import annotations

from stubserve_stub.backends.card import IF_ASKED, ON_CPUS, Card, Parameter

CARDS = (
    Card(
        "identity",
        "stubserve_stub.backends.identity.backend:IdentityBackend",
        devices=ON_CPUS,
        shares=IF_ASKED,
        parameters=(
            Parameter("creation_delay_sec", "seconds", "How long a load takes (0)."),
            Parameter("execute_delay_ms", "milliseconds", "How long a batch takes (0)."),
            Parameter(
                "instance_wise_delay_multiplier",
                "number",
                "Instance n takes n times this as long, the first one as long as said (0).",
            ),
        ),
    ),
)
