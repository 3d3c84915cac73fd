from __future__ import annotations

from stubserve_stub.backends.card import ON_GPUS_IF_ASKED, Card, ModelFile

CARDS = (
    Card(
        "onnxruntime",
        "stubserve_stub.backends.onnxruntime.backend:OnnxRuntimeBackend",
        files=(ModelFile("model.onnx", "onnxruntime_onnx"),),
        in_environments=True,
        # The package for CPUs is common.
        devices=ON_GPUS_IF_ASKED,
        instances_on_cpu=2,
        gathers=True,
        reads_on_gpus=True,
        package="onnxruntime",
        extra="onnxruntime",
        checks_config="stubserve_stub.backends.onnxruntime.check:check_config",
        checks_files="stubserve_stub.backends.onnxruntime.check:file_problems",
        limits_threads="stubserve_stub.backends.onnxruntime.threads:limit",
        # Builds from 1.29 on report each process and model to their maker, and leave a file in the temporary folder,
        # unless this is set before the import. A server's models must stay private.
        variables=(("ORT_DISABLE_TELEMETRY", "1"),),
    ),
)
