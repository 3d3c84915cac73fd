from __future__ import annotations

import itertools

import pytest

from stubserve.inference.request import Response
from stubserve.schedulers.ordering import ResponseOrderer

from .requests import request


@pytest.mark.parametrize("completion", list(itertools.permutations(range(4))))
def test_responses_leave_in_the_order_of_their_requests(completion):
    orderer = ResponseOrderer()
    requests = [request(i) for i in range(4)]
    responses = [Response() for _ in requests]
    for r in requests:
        orderer.expect(r)
    released = []
    done = set()
    for i in completion:
        released += orderer.complete(requests[i], responses[i])
        done.add(i)
        # Out is exactly the longest run of completed requests from the first on: nothing early, nothing held back.
        assert len(released) == next(n for n in range(5) if n not in done)
    assert released == list(zip(requests, responses, strict=True))
    assert len(orderer) == 0


def test_what_was_released_is_forgotten():
    orderer = ResponseOrderer()
    first, second = request(1), request(2)
    orderer.expect(first)
    assert [r.id for r, _ in orderer.complete(first, Response())] == ["1"]
    orderer.expect(second)
    assert len(orderer) == 1
    assert [r.id for r, _ in orderer.complete(second, Response())] == ["2"]


def test_an_unexpected_or_second_answer_is_an_error_of_the_caller():
    orderer = ResponseOrderer()
    first, second = request(1), request(2)
    with pytest.raises(KeyError):
        orderer.complete(first, Response())
    orderer.expect(first)
    orderer.expect(second)
    orderer.complete(second, Response())
    with pytest.raises(ValueError, match="after its final response"):
        orderer.complete(second, Response())


def test_streams_follow_one_another():
    orderer = ResponseOrderer()
    first, second, third = (request(i) for i in range(3))
    for r in (first, second, third):
        orderer.expect(r)
    more, last, only = Response(final=False), Response(), Response()
    assert orderer.complete(second, more) == []
    assert orderer.complete(second, last) == []
    early = Response(final=False)
    assert orderer.complete(first, early) == [(first, early)]
    assert orderer.complete(third, only) == []
    end = Response(empty=True)
    assert orderer.complete(first, end) == [(first, end), (second, more), (second, last), (third, only)]
    assert len(orderer) == 0
