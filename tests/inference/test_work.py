from __future__ import annotations

import pytest

from stubserve.inference.work import Work

from .models import request, zeros


def test_in_the_usual_case_nothing_is_made_anew() -> None:
    requests = [request(zeros("IN", [1]))]
    work = Work(requests)
    assert work.slots is work.requests is requests
    assert work.extra_inputs is None
    full = Work.of_slots(requests)
    assert full.slots is full.requests


def test_places_may_be_empty() -> None:
    extra = [[zeros("READY", [1, 1])], [zeros("READY", [1, 1])], []]
    one = request(zeros("IN", [1, 1]), id="one")
    work = Work.of_slots([None, one, None], extra)
    assert list(work.slots) == [None, one, None]
    assert list(work.requests) == [one]
    assert work.extra_inputs is extra


def test_work_has_a_request() -> None:
    with pytest.raises(ValueError, match="without a request"):
        Work.of_slots([None, None])
