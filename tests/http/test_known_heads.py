"""Heads that are put together of known lines are what the parser makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.http import reader
from stubserve.http.message import BadRequest, RequestHead, parse_head
from stubserve.http.reader import KnownHeads
from tests.http.test_message import LINES, text_of

USUAL = [b"Host: here", b"Content-Length: 12", b"Content-Type: application/json"]
INFER = b"POST /v2/models/m/infer HTTP/1.1"
ROUTES = [
    INFER,
    INFER,
    b"POST /v2/models/m/versions/2/infer?a HTTP/1.1",
    b"POST /v2/models/m/generate HTTP/1.1",
    b"POST /v2/models/m/infer HTTP/1.0",
    b"POST /v2/x HTTP/1.1",
]


def outcome(read: Callable[[bytes], RequestHead], data: bytes) -> list[object]:
    try:
        head = read(data)
    except BadRequest as refused:
        return [refused.status, str(refused)]
    return [getattr(head, name) for name in head.__slots__]


def taught(*lines: bytes) -> KnownHeads:
    """A memory that has seen these lines, in a valid head."""
    heads = KnownHeads()
    heads.read(text_of(*USUAL, *lines, route=INFER))
    return heads


def test_known_lines_in_any_order_with_any_lengths() -> None:
    heads = taught(b"inference-header-content-length: 3", b"Accept-Encoding: gzip", b"X-Request-Id: 1")
    data = text_of(
        b"X-Request-Id: another",
        b"inference-header-content-length:  99 ",
        b"Accept-Encoding: gzip",
        b"Content-Length: 100",
        b"Host: here",
        route=INFER,
    )
    found = heads.known(data)
    assert found is not None
    assert outcome(lambda _: found, data) == outcome(parse_head, data)
    assert (found.content_length, found.header_length, found.infer) == (100, b"99 ", ("m", ""))
    assert found.accept_encoding == b"gzip"


def test_the_first_traceparent_counts() -> None:
    heads = taught(b"traceparent: a")
    for lines, told in (([b"traceparent: b ", b"traceparent: c"], "b"), ([b"traceparent:"], ""), ([], None)):
        head = heads.known(text_of(*USUAL, *lines, route=INFER))
        assert head is not None
        assert head.trace_context() == told


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 12"],
        [b"Host: here", b"Host: here"],
        [b"Host: there"],
        [b"Host: here", b"Content-Length: 12", b"Content-Length: 12"],
        [b"Host: here", b"Content-Length: 12x"],
        [b"Host: here", b"Content-Length: "],
        [b"Host: here", b"Content-Length: 99999999999999999999"],
        [b"Host: here", b"X: a\x01b"],
        [b"Host: here", b"X: a\rb"],
        [b"Host: here", b"X: a\nContent-Length: 5"],
        [b"Host: here", b"X : a"],
        [b"Host: here", b" folded: a"],
        [b"Host: here", b"never seen: a"],
        [b"Host: here", b"Connection: close"],
        [b"Host: here", b"Transfer-Encoding: chunked"],
        [b"Host: here", b"Expect: 100-continue"],
        [b"Host: here", b"Upgrade: websocket"],
        [b"Host: here", b"Content-Encoding: gzip"],
    ],
)
def test_what_is_unusual_is_left_to_the_parser(lines: list[bytes]) -> None:
    """What the parser accepts of it is not learned either, if it says more than its field."""
    heads = taught(b"X: a", b"Connection: keep-alive")
    for _ in range(2):
        data = text_of(*lines, route=INFER)
        assert heads.known(data) is None
        assert outcome(heads.read, data) == outcome(parse_head, data)
        heads = taught(b"X: a", b"Connection: keep-alive", *(line for line in lines if line.endswith(b"gzip")))


def test_other_routes_are_left_to_the_parser() -> None:
    heads = taught()
    for route in (b"POST /v2/models/other/infer HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.0", b"GET /v2 HTTP/1.1"):
        assert heads.known(text_of(*USUAL, route=route)) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_KNOWN_LINES", 20)
    heads = KnownHeads()
    for number in range(100):
        route = b"POST /v2/models/m%d/infer HTTP/1.1" % number
        heads.read(text_of(*USUAL, b"X-%d: %d" % (number, number), route=route))
        assert max(len(heads._routes), len(heads._lines), len(heads._names)) <= 20 + len(USUAL) + 1
    assert heads.known(text_of(*USUAL, b"X-99: 5", route=route)) is not None
    long = text_of(*USUAL, b"X-99: " + b"x" * 1024, route=route)
    heads.read(long)
    assert heads.known(long) is None


HEADS = st.tuples(st.sampled_from(ROUTES), st.lists(LINES, max_size=5), st.booleans()).map(
    lambda found: text_of(*([b"Host: here"] if found[2] else []), *found[1], route=found[0])
)


@settings(deadline=None, max_examples=300)
@given(st.lists(HEADS, min_size=2, max_size=12))
def test_any_heads_one_after_the_other(seen: list[bytes]) -> None:
    heads = KnownHeads()
    for data in seen * 2:
        assert outcome(heads.read, data) == outcome(parse_head, data)
