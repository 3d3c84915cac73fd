from __future__ import annotations

from stubserve_stub.backends.card import IF_ASKED, ON_GPUS_IF_ASKED, Card, ModelFile, Parameter

CARDS = (
    Card(
        "onnxruntime",
        "stubserve_stub.backends.onnxruntime.backend:OnnxRuntimeBackend",
        files=(ModelFile("model.onnx", "onnxruntime_onnx"),),
        in_environments=True,
        # The package for CPUs is common.
        devices=ON_GPUS_IF_ASKED,
        instances_on_cpu=2,
        shares=IF_ASKED,
        gathers=True,
        optimizations=("graph", "execution_accelerators"),
        takes_operations=True,
        reads_on_gpus=True,
        package="onnxruntime",
        extra="onnxruntime",
        checks_config="stubserve_stub.backends.onnxruntime.check:check_config",
        checks_files="stubserve_stub.backends.onnxruntime.check:file_problems",
        opens_file="stubserve_stub.backends.onnxruntime.contract:open_file",
        limits_threads="stubserve_stub.backends.onnxruntime.threads:limit",
        # Builds from 1.29 on report each process and model to their maker, and leave a file in the temporary folder,
        # unless this is set before the import. A server's models must stay private.
        variables=(("ORT_DISABLE_TELEMETRY", "1"),),
        parameters=(
            Parameter("execution_mode", "0 or 1", "0 runs operators one after the other, 1 side by side (0)."),
            Parameter(
                "intra_op_thread_count", "integer", "Threads within an operator (the instance's share of the cores)."
            ),
            Parameter(
                "inter_op_thread_count",
                "integer",
                "Threads for operators that run side by side (onnxruntime's choice).",
            ),
            Parameter(
                "enable_mem_arena", "0 or 1", "Whether memory of the CPU comes from an arena (onnxruntime's choice)."
            ),
            Parameter(
                "enable_mem_pattern",
                "0 or 1",
                "Whether memory is planned by the shapes of earlier runs (onnxruntime's choice).",
            ),
            Parameter(
                "memory.enable_memory_arena_shrinkage",
                "text",
                "Arenas that are shrunk after each run, as cpu:0;gpu:0 (none).",
            ),
            Parameter(
                "session.use_device_allocator_for_initializers",
                "0 or 1",
                "Whether weights are allocated outside of the arena (0).",
            ),
            Parameter(
                "session.intra_op.allow_spinning",
                "0 or 1",
                "Whether threads spin while they wait for their next part of an operator (1).",
            ),
            Parameter(
                "session.inter_op.allow_spinning",
                "0 or 1",
                "Whether threads spin while they wait for their next operator (1).",
            ),
            Parameter("session.force_spinning_stop", "0 or 1", "Whether threads sleep between two runs (1)."),
            Parameter(
                "share_session_between_instances",
                "0 or 1",
                "No effect: INSTANCES_PER_STUB lets the instances of a group on CPUs share a session.",
            ),
            Parameter(
                "cudnn_conv_algo_search",
                "0, 1 or 2",
                "Exhaustive, heuristic or default search; for instances on GPUs (0).",
            ),
            Parameter("gpu_mem_limit", "bytes", "Memory that the session takes of a GPU (no limit)."),
            Parameter(
                "arena_extend_strategy",
                "0 or 1",
                "The next power of two, or as much as is asked for; for instances on GPUs (0).",
            ),
            Parameter(
                "do_copy_in_default_stream", "0 or 1", "Whether copies go through the default stream of a GPU (1)."
            ),
        ),
    ),
)
