"""How many times better than real Triton stubserve means to be, by workload and figure.

A latency of at most half is 2 times better, memory of at most 0.8 is 1.25 times better. BOUNDS are for figures that
stubserve's alone decides: at most so much, or at least, whichever is better.
"""

from __future__ import annotations

from . import costs, onnx_loads, text_loads, varied_loads
from .pipelines import STEP_P50
from .scrapes import SCRAPE, Scrapes
from .streaming import CALLS, RESPONSES
from .workloads import CPU, P50, P99, PARENT_RSS, RATE, START, STUB_RSS, Metric

BEFORE_LARGE = "memory after the small requests"
AFTERWARDS = "memory after the whole table"

TARGETS: dict[tuple[str, Metric], float] = {
    ("16 floats, 1 connection", P50): 2.2,
    ("16 floats, 16 connections", RATE): 2.5,
    ("16 floats, 16 connections", P99): 2,
    ("16 floats, 16 connections", CPU): 2,
    ("16 floats, 64 connections", RATE): 2.5,
    ("16 floats, 64 connections", P99): 2,
    ("256 floats as JSON, 16 connections", RATE): 2.2,
    ("1000 strings, 16 connections", RATE): 5,
    ("1 MiB, 4 connections", RATE): 4,
    ("4 MiB, 1 connection", RATE): 4,
    ("4 MiB, 4 connections", RATE): 4,
    ("16 MiB, 2 connections", RATE): 4,
    ("perf_analyzer, 16 floats, 16 in flight", RATE): 1.7,
    ("dynamic batching, 4 instances of 2 ms, 64 connections", RATE): 1.3,
    ("gRPC 16 floats, 16 connections", RATE): 1,
    ("gRPC 4 MiB, 1 connection", RATE): 2,
    ("gRPC 4 MiB, 4 connections", RATE): 2,
    ("shared memory, perf_analyzer HTTP, 4 MiB, 4 in flight", RATE): 3,
    ("shared memory, perf_analyzer gRPC, 4 MiB, 4 in flight", RATE): 3,
    ("shared memory, HTTP, 4 MiB, 4 connections", RATE): 5,
    ("shared memory, gRPC, 4 MiB, 4 connections", RATE): 5,
    ("cache hits, 16 connections", RATE): 3,
    ("cache hits, other ids, 16 connections", RATE): 3,
    ("cache hits, gRPC, 16 connections", RATE): 3,
    ("rate limiter, 16 connections", RATE): 2,
    ("decoupled, 1 gRPC stream", RESPONSES): 1,
    ("decoupled, 16 gRPC streams", RESPONSES): 1,
    ("decoupled, 1 event stream", RESPONSES): 1,
    ("decoupled, 16 event streams", RESPONSES): 1,
    ("calls between models, 16 floats", CALLS): 2,
    ("calls between models, 4 MiB", CALLS): 4,
    ("ensemble of 3, 16 floats, 8 connections", RATE): 2,
    ("ensemble of 3, 16 floats, 64 connections", RATE): 2,
    ("ensemble of 3, 4 MiB, 1 connection", RATE): 5,
    ("ensemble of 3, 4 MiB, 4 connections", RATE): 5,
    ("ensemble 1-4-1, 16 floats, 8 connections", RATE): 2,
    ("ensemble 1-4-1, 16 floats, 64 connections", RATE): 2,
    ("varied binary, 1 connection", P50): 2,
    **{(load.name, RATE): 2 for load in varied_loads.all_loads() if load.name != "varied binary, 1 connection"},
    **{(load.name, RATE): 1.2 for load in text_loads.all_loads()},
    ("start with 1 model", START): 1,
    ("start with 20 models", START): 1,
    (AFTERWARDS, PARENT_RSS): 1,
    (AFTERWARDS, STUB_RSS): 1.25,
}

BOUNDS: dict[tuple[str, Metric], float] = {
    ("ensemble, one step more, 1 connection", STEP_P50): 60,
    (Scrapes.name, SCRAPE): 50,
    ("cost of tracing at 1 %", costs.COST): 2,
    ("cost of tokens, restricted APIs and limits", costs.COST): 3,
    ("cost of tokens, restricted APIs and limits, heads differ", costs.COST): 3,
    ("cost of tokens, restricted APIs and limits, gRPC", costs.COST): 3,
    ("cost of TLS", costs.SHARE): 0.6,
    ("cost of TLS, gRPC", costs.SHARE): 0.6,
    **{(load.name, onnx_loads.SHARE): 0.9 for load in [*onnx_loads.all_loads(), *text_loads.all_loads()]},
}
