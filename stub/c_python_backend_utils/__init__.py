"""Upstream's C++ module, which some models import for the classes behind the public module."""

from __future__ import annotations

from stubserve_stub.api.bls import ResponseIterator
from stubserve_stub.api.constants import MemoryType, MetricKind
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.logger import Logger
from stubserve_stub.api.metrics import Metric, MetricFamily
from stubserve_stub.api.requests import InferenceRequest, InferenceTrace, PreferredMemory
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.api.server_queries import SharedMemory, is_model_ready, load_model, unload_model
from stubserve_stub.api.tensors import Tensor

TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM
shared_memory = SharedMemory()

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]
