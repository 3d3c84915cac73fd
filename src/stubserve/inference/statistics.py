"""Counts and times of one loaded model version: what the statistics endpoint, gRPC and the metrics all read.

Rules, as upstream has them: a request is a success if its execution did not fail, even if the model answered it with an
error. A failed execution counts all its requests as failures, and still as one execution. Times are summed nanoseconds.
A request that was answered from the response cache is a success that was not computed.
"""

# Compiled by mypyc.
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stubserve.errors import Code, ServeError
from stubserve.inference.request import (
    BACKEND_FAILURE,
    CANCELLED,
    OTHER_FAILURE,
    REJECTED,
    SUCCESS,
    Request,
    Response,
)
from stubserve.inference.token_counts import TokenCounts

# Outcomes as the failure metric's `reason` label spells them.
FAILURE_REASONS = {REJECTED: "REJECTED", CANCELLED: "CANCELED", BACKEND_FAILURE: "BACKEND", OTHER_FAILURE: "OTHER"}

# How many responses to one request have statistics of their own.
RESPONSES = 256

# What is kept of an error's text
_TEXT_LENGTH = 2000


class _Executions:
    """Executions of one total batch size."""

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class _Responses:
    """The first responses to all requests, or the second ones, and so on: how many of each kind, and their time."""

    def __init__(self) -> None:
        # Each has a count and nanoseconds
        self.infer = [0, 0]
        self.output = [0, 0]
        self.success = [0, 0]
        self.fail = [0, 0]
        self.empty = [0, 0]
        self.cancel = [0, 0]

    def record(self, request: Request, response: Response, begin_ns: int, start_ns: int, end_ns: int) -> None:
        if request.cancelled:
            kind = self.cancel
        elif response.empty:
            kind = self.empty
        else:
            kind = self.success if response.error is None else self.fail
            _add(self.infer, start_ns - begin_ns)
            _add(self.output, end_ns - start_ns)
        _add(kind, end_ns - begin_ns)

    def to_dict(self) -> dict[str, Any]:
        return {
            "compute_infer": _duration(*self.infer),
            "compute_output": _duration(*self.output),
            "success": _duration(*self.success),
            "fail": _duration(*self.fail),
            "empty_response": _duration(*self.empty),
            "cancel": _duration(*self.cancel),
        }


class ErrorAnswers:
    """The answers that are errors with one code: how many, and the last one, with its Unix time."""

    def __init__(self) -> None:
        self.count = 0
        self.last_s = 0.0
        self.text = ""


class ModelStatistics:
    """The statistics of one model version.

    Readers take the attributes as they are: `failures` counts by outcome, durations are nanoseconds,
    `last_inference_ms` is Unix time. `memory_usage` gives the rows of that name as they are now.
    """

    def __init__(self, memory_usage: Callable[[], list[dict[str, Any]]] = list) -> None:
        self._memory_usage = memory_usage
        self.success_count = 0
        self.success_ns = 0
        self.fail_count = 0
        self.fail_ns = 0
        self.failures = dict.fromkeys(FAILURE_REASONS, 0)
        self.queue_ns = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0
        self.inference_count = 0
        self.last_inference_ms = 0
        # Whether the model uses the response cache, the hits and misses there, and the time that these took
        self.cached = False
        self.cache_hit_count = 0
        self.cache_hit_ns = 0
        self.cache_miss_count = 0
        self.cache_miss_ns = 0
        # Upstream's counts take an execution that answers with an error for a success.
        self.errors: dict[Code, ErrorAnswers] = {}
        # Only for a model that OpenAI's routes can serve
        self.tokens: TokenCounts | None = None
        # Only for a decoupled model: responses by their place in the answer to one request
        self.responses: list[_Responses] = []
        self.execution_count = 0
        self.executions: dict[int, _Executions] = {}

    def record_batch(
        self, requests: Sequence[Request], empty: int = 0, took_ns: tuple[int, int, int] | None = None
    ) -> None:
        """Counts one execution and its requests, once all their timestamps are set.

        A request without an outcome, or with SUCCESS, is a success. As upstream, `empty` places of a batch count in its
        size. For an ensemble, `took_ns` is for how long its members have read, computed and answered.
        """
        # The measured times of an execution are the same for all of its requests.
        first = requests[0]
        if took_ns is None:
            input_ns = first.compute_input_end_ns - first.compute_start_ns
            infer_ns = first.compute_infer_end_ns - first.compute_input_end_ns
            output_ns = first.compute_end_ns - first.compute_infer_end_ns
        else:
            input_ns, infer_ns, output_ns = took_ns
        batch_size = empty
        count = items = arrived_ns = queued_ns = 0
        for request in requests:
            size = request.batch_size
            batch_size += size
            outcome = request.outcome
            if outcome is None or outcome == SUCCESS:
                count += 1
                items += size
                arrived_ns += request.request_start_ns
                queued_ns += request.queue_start_ns
            else:
                self._count_failure(request, request.compute_end_ns)
        self.success_count += count
        self.inference_count += items
        self.success_ns += count * first.compute_end_ns - arrived_ns
        self.queue_ns += count * first.compute_start_ns - queued_ns
        self.compute_input_ns += count * input_ns
        self.compute_infer_ns += count * infer_ns
        self.compute_output_ns += count * output_ns
        self.execution_count += 1
        executions = self.executions.get(batch_size)
        if executions is None:
            executions = self.executions[batch_size] = _Executions()
        executions.count += 1
        executions.input_ns += input_ns
        executions.infer_ns += infer_ns
        executions.output_ns += output_ns
        self.last_inference_ms = time.time_ns() // 1_000_000

    def record_hit(self, request: Request, asked_ns: int, took_ns: int, end_ns: int) -> None:
        """Counts a request that the response cache answered at `end_ns`; the look-up at `asked_ns` took `took_ns`."""
        self.success_count += 1
        self.success_ns += end_ns - request.request_start_ns
        self.queue_ns += asked_ns - request.queue_start_ns
        self.cache_hit_count += 1
        self.cache_hit_ns += took_ns

    def record_miss(self, took_ns: int) -> None:
        """Counts the time of look-up and insertion for a request that was computed."""
        self.cache_miss_count += 1
        self.cache_miss_ns += took_ns

    def record_response(self, request: Request, response: Response, start_ns: int) -> None:
        """Counts a response of a decoupled model, which the model sent at `start_ns`.

        Its time begins when the request was executed or the previous response was sent. Only the first RESPONSES of a
        request are counted: a stream may have any number.
        """
        stream = request.streamed()
        place = stream.responses
        if place == RESPONSES:
            return
        stream.responses += 1
        if place == len(self.responses):
            self.responses.append(_Responses())
        begin_ns = stream.last_ns or request.compute_start_ns
        self.responses[place].record(request, response, begin_ns, start_ns, time.monotonic_ns())
        stream.last_ns = start_ns

    def record_failure(self, request: Request) -> None:
        """Counts a request that ended without an execution, under its outcome (OTHER if it has none)."""
        self._count_failure(request, time.monotonic_ns())

    def record_error(self, error: ServeError) -> None:
        """Counts an answer that is an error, whoever made it: the model, or the server for it."""
        # Codes that only some protocols tell apart are INVALID_ARG to the others.
        code = error.code.of_triton
        answers = self.errors.setdefault(code, ErrorAnswers())
        answers.count += 1
        answers.last_s = time.time()
        answers.text = error.message[:_TEXT_LENGTH]

    def to_dict(self, model: str, version: int) -> dict[str, Any]:
        """One entry of `model_stats`, keys in upstream's order."""
        computed = self.success_count - self.cache_hit_count
        return {
            "name": model,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(self.success_count, self.success_ns),
                "fail": _duration(self.fail_count, self.fail_ns),
                "queue": _duration(self.success_count, self.queue_ns),
                "compute_input": _duration(computed, self.compute_input_ns),
                "compute_infer": _duration(computed, self.compute_infer_ns),
                "compute_output": _duration(computed, self.compute_output_ns),
                "cache_hit": _duration(self.cache_hit_count, self.cache_hit_ns),
                "cache_miss": _duration(self.cache_miss_count, self.cache_miss_ns),
            },
            "response_stats": {str(place): responses.to_dict() for place, responses in enumerate(self.responses)},
            "batch_stats": [
                {
                    "batch_size": batch_size,
                    "compute_input": _duration(executions.count, executions.input_ns),
                    "compute_infer": _duration(executions.count, executions.infer_ns),
                    "compute_output": _duration(executions.count, executions.output_ns),
                }
                for batch_size, executions in sorted(self.executions.items())
            ],
            "memory_usage": self._memory_usage(),
        }

    def _count_failure(self, request: Request, end_ns: int) -> None:
        self.fail_count += 1
        self.fail_ns += end_ns - request.request_start_ns
        self.failures[request.outcome if request.outcome in self.failures else OTHER_FAILURE] += 1

    def __repr__(self) -> str:
        return f"<ModelStatistics {self.success_count} succeeded, {self.fail_count} failed>"


def _add(total: list[int], nanoseconds: int) -> None:
    total[0] += 1
    total[1] += nanoseconds


def _duration(count: int, nanoseconds: int) -> dict[str, int]:
    return {"count": count, "ns": nanoseconds}
