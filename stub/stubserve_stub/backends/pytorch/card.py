from __future__ import annotations

from stubserve_stub.backends.card import FILE, IF_ASKED, ON_GPUS_IF_ASKED, Card, ModelFile, Parameter

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
        shares=IF_ASKED,
        shares_with="ENABLE_WEIGHT_SHARING",
        gathers=True,
        reads_on_gpus=True,
        package="torch",
        extra="pytorch",
        checks_config="stubserve_stub.backends.pytorch.options:options_of",
        checks_files="stubserve_stub.backends.pytorch.check:file_problems",
        parameters=(
            Parameter("INFERENCE_MODE", "true or false", "Whether execution is in inference mode (true)."),
            Parameter(
                "DISABLE_OPTIMIZED_EXECUTION",
                "true or false",
                "Whether TorchScript runs without optimisations (false).",
            ),
            Parameter(
                "ENABLE_JIT_EXECUTOR",
                "true or false",
                "Whether TorchScript has the profiling executor (torch's choice).",
            ),
            Parameter("ENABLE_JIT_PROFILING", "true or false", "Whether TorchScript is profiled (torch's choice)."),
            Parameter("ENABLE_TENSOR_FUSER", "true or false", "Whether TorchScript fuses operators (torch's choice)."),
            Parameter(
                "INTRA_OP_THREAD_COUNT", "integer", "Threads within an operator (the instance's share of the cores)."
            ),
            Parameter(
                "INTER_OP_THREAD_COUNT",
                "integer",
                "Threads for operators that run side by side (the instance's share of the cores).",
            ),
            Parameter("NUM_THREADS", "integer", "Another name of INTRA_OP_THREAD_COUNT."),
            Parameter("NUM_INTEROP_THREADS", "integer", "Another name of INTER_OP_THREAD_COUNT."),
            Parameter(
                "TORCH_COMPILE_OPTIONAL_PARAMETERS",
                "JSON",
                "Has a module in Python compiled, with these options of torch.compile.",
            ),
            Parameter("DISABLE_CUDNN", "true or false", "Whether cuDNN is off; for instances on GPUs (false)."),
            Parameter(
                "ENABLE_CACHE_CLEANING",
                "true or false",
                "Whether torch's memory of a GPU is given back after each execution (false).",
            ),
            Parameter("ENABLE_NVFUSER", "true or false", "No effect: torch has no nvFuser any more."),
            Parameter(
                "ENABLE_WEIGHT_SHARING",
                "true or false",
                "Whether the instances of a group on CPUs share a stub and its weights (false).",
            ),
            Parameter("MODEL_INIT_LIBRARY", "text", "Refused: it has a compiled library."),
        ),
    ),
)
