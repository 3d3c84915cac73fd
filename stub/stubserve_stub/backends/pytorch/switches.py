"""Sets what torch has one of in a process: threads, and how TorchScript is executed. A process has one instance."""

from __future__ import annotations

from typing import Any, List

from stubserve_stub.backends.pytorch.options import Options


def switch(torch: Any, options: Options) -> List[str]:
    """Applies the options before anything runs. Lines for the log, about what this version of torch does not have."""
    if options.intra_op_threads:
        torch.set_num_threads(options.intra_op_threads)
    if options.inter_op_threads and options.inter_op_threads != torch.get_num_interop_threads():
        torch.set_num_interop_threads(options.inter_op_threads)
    remarks: List[str] = []
    if not options.optimized_execution:
        _set(torch, "_set_graph_executor_optimize", False, "DISABLE_OPTIMIZED_EXECUTION", remarks)
    for name, function, wanted in (
        ("ENABLE_JIT_EXECUTOR", "_jit_set_profiling_executor", options.jit_executor),
        ("ENABLE_JIT_PROFILING", "_jit_set_profiling_mode", options.jit_profiling),
        ("ENABLE_TENSOR_FUSER", "_jit_set_texpr_fuser_enabled", options.tensor_fuser),
    ):
        if wanted is not None:
            _set(torch, function, wanted, name, remarks)
    return remarks


def _set(torch: Any, function: str, value: bool, parameter: str, remarks: List[str]) -> None:
    # torch has no public names for these; all of its own tools call them so.
    setter = getattr(torch._C, function, None)
    if setter is None:
        remarks.append("parameter '{}' has no effect: torch {} has no such switch".format(parameter, torch.__version__))
    else:
        setter(value)
