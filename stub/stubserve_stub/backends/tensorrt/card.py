from __future__ import annotations

from stubserve_stub.backends.card import FILE, Card, ModelFile

CARDS = (
    Card(
        "tensorrt",
        "stubserve_stub.backends.tensorrt.backend:TensorRtBackend",
        files=(ModelFile("model.plan", "tensorrt_plan", FILE),),
        in_environments=True,
        gathers=True,
        reads_on_gpus=True,
        has_engines=True,
        package="tensorrt",
        extra="tensorrt",
    ),
)
