"""The workloads of the benchmark, in the order of its table."""

from __future__ import annotations

from . import (
    chats,
    costs,
    onnx_loads,
    options,
    sequence_loads,
    shared_memory,
    text_loads,
    torch_loads,
    varied_loads,
    wrk,
)
from .payloads import Form
from .pipelines import PipelineLoad, StepCost
from .scrapes import Scrapes
from .streaming import CallsOfModels, EventStreams, GrpcLoad, GrpcStreams
from .workloads import AnalyzerLoad, BatchedLoad, BulkLoad, StartUp, Workload, WrkLoad


def all_workloads(installed: bool = True) -> list[Workload]:
    """Every workload. With `installed`, only those that have their tools and packages here."""

    def there(*needed: bool) -> bool:
        return not installed or all(needed)

    floats, strings = "identity_fp32", "identity_bytes"
    found: list[Workload] = []
    if there(wrk.available()):
        found += [
            WrkLoad("16 floats", floats, 16, 1, count_cpu=True),
            WrkLoad("16 floats", floats, 16, 16, count_cpu=True),
            WrkLoad("16 floats", floats, 16, 64, count_cpu=True),
            WrkLoad("256 floats as JSON", floats, 256, 16, Form.JSON),
            WrkLoad("1000 strings", strings, 1000, 16, Form.STRINGS),
            BatchedLoad("dynamic batching, 4 instances of 2 ms", "sleep_2ms", 16, 64),
            PipelineLoad("of 3, 16 floats", "chain_3", 16, 8),
            PipelineLoad("of 3, 16 floats", "chain_3", 16, 64),
            PipelineLoad("1-4-1, 16 floats", "fan", 16, 8, factor=4),
            PipelineLoad("1-4-1, 16 floats", "fan", 16, 64, factor=4),
            StepCost(),
        ]
    return [
        *found,
        BulkLoad("1 MiB", floats, 1 << 18, 4),
        BulkLoad("4 MiB", floats, 1 << 20, 1),
        BulkLoad("4 MiB", floats, 1 << 20, 4),
        BulkLoad("16 MiB", floats, 1 << 22, 2),
        *varied_loads.all_loads(installed),
        *sequence_loads.all_loads(installed),
        AnalyzerLoad(16),
        GrpcLoad("16 floats", 16, 16),
        GrpcLoad("4 MiB", 1 << 20, 1),
        GrpcLoad("4 MiB", 1 << 20, 4),
        *chats.all_loads(installed),
        *shared_memory.all_loads(),
        *(options.all_loads() if there(wrk.available()) else []),
        *costs.all_loads(installed),
        GrpcStreams(1),
        GrpcStreams(16),
        EventStreams(1),
        EventStreams(16),
        PipelineLoad("of 3, 4 MiB", "chain_3", 1 << 20, 1),
        PipelineLoad("of 3, 4 MiB", "chain_3", 1 << 20, 4),
        PipelineLoad("1-4-1, 4 MiB", "fan", 1 << 20, 2, factor=4),
        CallsOfModels("16 floats", 1000, 16),
        CallsOfModels("4 MiB", 20, 1 << 20),
        *(onnx_loads.all_loads() if there(wrk.available(), onnx_loads.available()) else []),
        *(text_loads.all_loads() if there(wrk.available(), text_loads.available()) else []),
        *(torch_loads.all_loads() if there(wrk.available(), torch_loads.available()) else []),
        *([Scrapes()] if there(wrk.available()) else []),
        StartUp(1),
        StartUp(20),
    ]
