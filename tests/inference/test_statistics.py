from __future__ import annotations

from stubserve.inference.request import BACKEND_FAILURE, CANCELLED, REJECTED, SUCCESS, Request
from stubserve.inference.statistics import ModelStatistics
from tests.inference.models import request


def executed(batch_size: int, start: int, outcome: str | None = None) -> Request:
    made = request(batch_size=batch_size)
    made.outcome = outcome
    made.request_start_ns = start
    made.queue_start_ns = start + 1
    made.compute_start_ns = start + 11
    made.compute_input_end_ns = start + 111
    made.compute_infer_end_ns = start + 1111
    made.compute_end_ns = start + 11111
    return made


def duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def test_nothing_yet() -> None:
    # As 2.51 answers for a model that was never asked.
    zero = duration(0, 0)
    names = (
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    )  # fmt: skip
    found = ModelStatistics().to_dict("one", 1)
    assert found == {
        "name": "one",
        "version": "1",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(names, zero),
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
    assert list(found["inference_stats"]) == list(names)


def test_a_batch_counts_once_and_its_requests_each() -> None:
    statistics = ModelStatistics()
    statistics.record_batch([executed(1, 0), executed(2, 0, SUCCESS), executed(3, 0)])
    found = statistics.to_dict("dyn", 1)
    assert (found["inference_count"], found["execution_count"]) == (6, 1)
    assert found["inference_stats"] == {
        "success": duration(3, 33333),
        "fail": duration(0, 0),
        "queue": duration(3, 30),
        "compute_input": duration(3, 300),
        "compute_infer": duration(3, 3000),
        "compute_output": duration(3, 30000),
        "cache_hit": duration(0, 0),
        "cache_miss": duration(0, 0),
    }
    assert found["batch_stats"] == [
        {
            "batch_size": 6,
            "compute_input": duration(1, 100),
            "compute_infer": duration(1, 1000),
            "compute_output": duration(1, 10000),
        }
    ]
    assert found["last_inference"] > 1_600_000_000_000


def test_a_failed_execution_is_an_execution() -> None:
    # Two failed and five good single requests in 2.51: 7 executions, 5 inferences, batch size 1 seven times.
    statistics = ModelStatistics()
    for outcome in [BACKEND_FAILURE] * 2 + [None] * 5:
        statistics.record_batch([executed(1, 0, outcome)])
    found = statistics.to_dict("err", 1)
    assert (found["inference_count"], found["execution_count"]) == (5, 7)
    assert found["inference_stats"]["fail"] == duration(2, 22222)
    assert found["inference_stats"]["success"]["count"] == 5
    assert found["inference_stats"]["compute_infer"]["count"] == 5
    assert found["batch_stats"][0]["compute_infer"] == duration(7, 7000)
    assert statistics.failures[BACKEND_FAILURE] == 2


def test_batch_sizes_come_in_order() -> None:
    statistics = ModelStatistics()
    for size in (4, 1, 2, 1):
        statistics.record_batch([executed(size, 0)])
    rows = statistics.to_dict("m", 1)["batch_stats"]
    assert [(row["batch_size"], row["compute_infer"]["count"]) for row in rows] == [(1, 2), (2, 1), (4, 1)]


def test_failures_without_an_execution() -> None:
    statistics = ModelStatistics()
    for outcome in (REJECTED, CANCELLED, CANCELLED, None):
        statistics.record_failure(executed(1, 0, outcome))
    assert statistics.failures == {"rejected": 1, "cancelled": 2, "backend": 0, "other": 1}
    found = statistics.to_dict("m", 1)
    assert found["inference_stats"]["fail"]["count"] == 4
    assert found["inference_stats"]["fail"]["ns"] > 0
    assert found["execution_count"] == 0
