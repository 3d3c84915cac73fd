from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card, Parameter

CARDS = (
    Card("repeat", "stubserve_stub.backends.repeat.backend:RepeatBackend", devices=ON_CPUS),
    Card(
        "square",
        "stubserve_stub.backends.repeat.backend:SquareBackend",
        devices=ON_CPUS,
        parameters=(
            Parameter("CUSTOM_INFER_DELAY_NS", "nanoseconds", "How long each response takes (0)."),
            Parameter("CUSTOM_OUTPUT_DELAY_NS", "nanoseconds", "How long its output takes besides (0)."),
            Parameter("CUSTOM_FAIL_COUNT", "integer", "How many of the last responses are errors (0)."),
            Parameter("CUSTOM_EMPTY_COUNT", "integer", "How many responses behind those are left out (0)."),
        ),
    ),
)
