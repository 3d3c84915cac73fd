from __future__ import annotations

from stubserve_stub.backends.card import FILE, ON_GPUS_IF_ASKED, Card, ModelFile

CARDS = (
    Card(
        "pytorch",
        "stubserve_stub.backends.pytorch.backend:PyTorchBackend",
        files=(
            # As upstream: a configuration does not get the name if a platform, or the file itself, means TorchScript.
            ModelFile("model.pt", "pytorch_libtorch", FILE, alias="libtorch", fills_name=False),
            ModelFile("model.pt2", "torch_aoti", FILE),
        ),
        in_environments=True,
        has_python_runtime=True,
        # The package for CPUs is common.
        devices=ON_GPUS_IF_ASKED,
        gathers=True,
        reads_on_gpus=True,
        package="torch",
        extra="pytorch",
        checks_config="stubserve_stub.backends.pytorch.options:options_of",
        checks_files="stubserve_stub.backends.pytorch.check:file_problems",
    ),
)
