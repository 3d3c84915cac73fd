from __future__ import annotations

import pytest

from stubserve.inference.request import SEQUENCE_START
from stubserve.inference.work import Work

from .models import request, zeros


def test_in_the_usual_case_nothing_is_made_anew() -> None:
    requests = [request(zeros("IN", [1]))]
    work = Work(requests)
    assert work.slots is work.requests is work.as_sent() is requests
    full = Work.of_slots(requests)
    assert full.slots is full.requests is full.as_sent()


def test_empty_places_are_sent_with_what_the_scheduler_gives_them() -> None:
    ready, idle = zeros("READY", [1, 1]), zeros("READY", [1, 1])
    one = request(zeros("IN", [1, 1]), id="one", correlation_id=7, flags=SEQUENCE_START)
    one.timeout_us, one.parameters, one.requested_outputs = 5, {"p": 1}, ["OUT"]
    work = Work.of_slots([None, one, None], [[idle], [ready], []])
    assert list(work.slots) == [None, one, None]
    assert list(work.requests) == [one]
    empty, sent, bare = work.as_sent()
    assert (empty.inputs, bare.inputs) == ([idle], [])
    assert sent.inputs == [*one.inputs, ready]
    assert len(one.inputs) == 1
    for what in ("id", "correlation_id", "flags", "timeout_us", "parameters", "requested_outputs", "batch_size"):
        assert getattr(sent, what) == getattr(one, what)


def test_places_without_extra_inputs_are_the_requests_themselves() -> None:
    one, two = request(zeros("IN", [1])), request(zeros("IN", [1]))
    work = Work.of_slots([one, two], [[], [zeros("STATE", [1])]])
    sent = work.as_sent()
    assert sent[0] is one
    assert [tensor.name for tensor in sent[1].inputs] == ["IN", "STATE"]


def test_work_has_a_request() -> None:
    with pytest.raises(ValueError, match="without a request"):
        Work.of_slots([None, None])
