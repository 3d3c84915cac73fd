from __future__ import annotations

import logging
from typing import Any

import pytest

from stubserve.errors import Code, internal, unavailable
from stubserve.inference.latencies import Latencies
from stubserve.inference.request import BACKEND_FAILURE, Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.serving.delivery import Delivery
from tests.inference.models import echo

from .fakes import Blocks, Reader


class Parts:
    def __init__(self, keep_order: bool = False, signature: Signature | None = None) -> None:
        self.reader = Reader()
        self.blocks = Blocks()
        self.statistics = ModelStatistics()
        self.delivery = Delivery(signature or echo("m", "FP32", "1"), self.statistics, keep_order)

    def expect(self, *ids: str, executing: bool = True) -> list[Request]:
        requests = [self.reader.request(id, self.blocks.tensor()) for id in ids]
        for request in requests:
            request.compute_start_ns = int(executing)
            self.delivery.expect(request)
        return requests

    def response(self, final: bool = True) -> Response:
        return Response([self.blocks.tensor()], final=final)


def test_blocks_are_dropped_when_the_reader_has_had_them() -> None:
    parts = Parts()
    (a,) = parts.expect("a")
    parts.delivery.respond(a, parts.response(final=False))
    assert parts.blocks.live == 1  # the input, until the final response
    assert parts.delivery.under_way == 1
    parts.delivery.respond(a, parts.response())
    assert parts.reader.ids == ["a", "a"]
    assert parts.blocks.live == 0
    assert parts.delivery.under_way == 0


def test_responses_go_out_in_the_order_of_requests() -> None:
    parts = Parts(keep_order=True)
    a, b, c = parts.expect("a", "b", "c")
    parts.delivery.respond(c, parts.response())
    parts.delivery.respond(b, parts.response(final=False))
    assert parts.reader.ids == []
    parts.delivery.fail([a], unavailable("late"), None)
    assert parts.reader.ids == ["a", "b"]
    parts.delivery.respond(b, parts.response())
    assert parts.reader.ids == ["a", "b", "b", "c"]
    assert parts.blocks.live == 0


def test_an_answer_after_the_final_one_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(keep_order=True)
    a, b = parts.expect("a", "b")
    parts.delivery.respond(b, parts.response())
    with caplog.at_level(logging.ERROR):
        parts.delivery.respond(b, parts.response())
    assert "answered after its final response" in caplog.text
    parts.delivery.respond(a, parts.response())
    assert parts.reader.ids == ["a", "b"]
    assert parts.blocks.live == 0


def test_a_reader_that_fails_costs_nobody_else_anything(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    a, b = parts.expect("a", "b")

    def fails(request: Request, response: Response) -> None:
        raise RuntimeError("a fault of the reader")

    a.on_response = fails
    with caplog.at_level(logging.ERROR):
        parts.delivery.respond(a, parts.response())
    parts.delivery.respond(b, parts.response())
    assert "a fault of the reader" in caplog.text
    assert parts.reader.ids == ["b"]
    assert (parts.blocks.live, parts.delivery.under_way) == (0, 0)


def test_a_fault_while_shapes_are_changed_is_an_error_for_that_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(signature=echo("m", "FP32", "1", "output { name: 'X' data_type: TYPE_FP32 dims: [1] reshape {} }"))
    a, b = parts.expect("a", "b")
    broken = parts.response()
    broken.outputs[0].name = "X"
    broken.outputs[0].shape = None  # type: ignore[assignment]  # what no reader of messages would make
    with caplog.at_level(logging.ERROR):
        parts.delivery.respond(a, broken)
    assert parts.reader.error("a").code is Code.INTERNAL
    assert "could not be given its shape" in caplog.text
    parts.delivery.respond(b, parts.response())
    assert parts.reader.ids == ["a", "b"]
    assert parts.blocks.live == 0


def test_counting_that_fails_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Latencies):
        def on_response(self, request: Request, response: Response) -> None:
            raise ZeroDivisionError

        def on_batch(self, requests: Any) -> None:
            raise ZeroDivisionError

    parts = Parts()
    parts.delivery.latencies = Broken(None, True)
    (a,) = parts.expect("a")
    with caplog.at_level(logging.ERROR):
        parts.delivery.respond(a, parts.response())
        parts.delivery.executed([a])
    assert parts.reader.ids == ["a"]
    assert caplog.text.count("could not be counted") == 2


def test_failures_without_an_execution_are_counted_as_what_they_are() -> None:
    parts = Parts()
    a, b = parts.expect("a", "b")
    parts.delivery.fail([a], internal("dead"), BACKEND_FAILURE)
    parts.delivery.fail([b], internal("dead"), None)
    assert parts.statistics.failures[BACKEND_FAILURE] == parts.statistics.fail_count == 1
    assert parts.reader.ids == ["a", "b"]


# Credit


def passed_on(parts: Parts, request: Request, batch: tuple[Request, ...] = ()) -> list[str]:
    """What will have "yes" in it when all responses to a request are with its reader."""
    told: list[str] = []
    parts.delivery.when_delivered(request, lambda: told.append("yes"), batch)
    return told


def test_without_an_order_credit_is_given_at_once() -> None:
    parts = Parts()
    a, b = parts.expect("a", "b")
    parts.delivery.respond(b, parts.response(final=False))
    assert passed_on(parts, b)
    a.pause()
    told = passed_on(parts, a)
    assert not told
    a.resume()
    assert told


def test_credit_for_what_is_held_back_waits_until_it_is_passed_on() -> None:
    parts = Parts(keep_order=True)
    a, b = parts.expect("a", "b")
    parts.delivery.respond(b, parts.response(final=False))
    told = passed_on(parts, b)
    parts.delivery.respond(a, parts.response(final=False))
    assert not told
    parts.delivery.respond(a, parts.response())
    assert told
    assert parts.reader.ids == ["a", "a", "b"]
    parts.delivery.respond(b, parts.response(final=False))
    assert passed_on(parts, b)


def test_a_reader_that_is_behind_keeps_credit_back_as_well() -> None:
    parts = Parts(keep_order=True)
    a, b = parts.expect("a", "b")
    parts.delivery.respond(b, parts.response(final=False))
    b.pause()
    told = passed_on(parts, b)
    parts.delivery.respond(a, parts.response())
    assert not told
    b.resume()
    assert told


def test_a_request_does_not_wait_for_one_of_the_batch_that_is_executing() -> None:
    # The model may answer them in turn: stopped at the second, it would never finish the first.
    parts = Parts(keep_order=True)
    a, b, c = parts.expect("a", "b", "c")
    for request in (b, c):
        parts.delivery.respond(request, parts.response(final=False))
    assert passed_on(parts, c, batch=(b, c))
    assert not passed_on(parts, b, batch=(b, c))  # a is in other hands
    assert passed_on(parts, b, batch=(a, b))


def test_a_request_does_not_wait_for_one_that_is_still_queued() -> None:
    # It may need the very instance that would wait.
    parts = Parts(keep_order=True)
    (a,) = parts.expect("a", executing=False)
    (b,) = parts.expect("b")
    parts.delivery.respond(b, parts.response(final=False))
    assert passed_on(parts, b)
    a.compute_start_ns = 1
    assert not passed_on(parts, b)


def test_a_cancelled_request_keeps_no_memory_and_no_credit() -> None:
    parts = Parts(keep_order=True)
    a, b = parts.expect("a", "b")
    parts.delivery.respond(b, parts.response(final=False))
    told = passed_on(parts, b)
    b.cancelled = True
    parts.delivery.cancelled(b)
    assert told
    assert parts.blocks.live == 2  # the inputs
    parts.delivery.respond(b, parts.response(final=False))
    assert passed_on(parts, b)
    assert parts.blocks.live == 2
    parts.delivery.respond(b, parts.response())
    parts.delivery.respond(a, parts.response())
    assert parts.reader.ids == ["a", "b", "b", "b"]
    assert (parts.blocks.live, parts.delivery.under_way) == (0, 0)
