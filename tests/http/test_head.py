"""Heads that are put together from known lines are what the parser makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.http import head as heads
from stubserve.http.head import BadRequest, HeadCache, RequestHead, parse_head

INFER = b"POST /v2/models/m/infer HTTP/1.1"
USUAL = [b"Host: here", b"Content-Length: 12", b"Content-Type: application/json"]


def text_of(*lines: bytes, route: bytes = INFER) -> bytes:
    return b"\r\n".join([route, *lines, b"", b""])


def all_of(found: RequestHead) -> dict[str, Any]:
    hidden = ("_headers", "_lines")
    return {"headers": found.headers} | {name: getattr(found, name) for name in found.__slots__ if name not in hidden}


def outcome(read: Any, data: bytes) -> Any:
    try:
        return all_of(read(data))
    except BadRequest as refused:
        return refused.status, str(refused)


def taught(*lines: bytes) -> HeadCache:
    """A memory that has seen these lines, in a valid head."""
    cache = HeadCache()
    cache.get(text_of(*USUAL, *lines))
    return cache


def test_known_lines_in_any_order_with_any_lengths() -> None:
    cache = taught(b"inference-header-content-length: 3", b"Accept: */*", b"X-Request-Id: 1")
    data = text_of(
        b"X-Request-Id: another",
        b"inference-header-content-length:  99 ",
        b"Content-Length: 100",
        b"Host: here",
    )
    found = cache.known(data)
    assert found is not None
    assert all_of(found) == all_of(parse_head(data))
    assert (found.content_length, found.header_length, found.infer) == (100, b"99 ", ("m", ""))


def test_the_same_head_is_the_same_object() -> None:
    cache = HeadCache()
    data = text_of(*USUAL)
    assert cache.get(data) is cache.get(data) is cache.known(data)


def test_an_accepted_encoding_is_part_of_the_head() -> None:
    cache = taught(b"Accept-Encoding: gzip")
    found = cache.known(text_of(b"Accept-Encoding: gzip", b"Host: here"))
    assert found is not None
    assert found.accept_encoding == b"gzip"


def test_the_first_traceparent_counts() -> None:
    cache = taught(b"traceparent: a")
    for lines, told in (
        ([b"traceparent: b ", b"traceparent: c"], "b"),
        ([b"traceparent:", b"traceparent: c"], ""),
        ([], None),
    ):
        data = text_of(*USUAL, *lines)
        head = cache.known(data)
        assert head is not None
        assert (head.trace_context(), parse_head(data).trace_context()) == (told, told)


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
    cache = taught(b"X: a", b"Connection: keep-alive")
    # What the parser accepts of it is not learned either, if it says more than its field.
    for _ in range(2):
        assert cache.known(text_of(*lines)) is None
        assert outcome(cache.get, text_of(*lines)) == outcome(parse_head, text_of(*lines))
        cache = taught(b"X: a", b"Connection: keep-alive", *(line for line in lines if line.endswith(b"gzip")))


def test_other_routes_are_left_to_the_parser() -> None:
    cache = taught()
    for route in (b"POST /v2/models/other/infer HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.0", b"GET /v2 HTTP/1.1"):
        assert cache.known(text_of(*USUAL, route=route)) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_KNOWN_LINES", 20)
    cache = HeadCache()
    for number in range(100):
        route = b"POST /v2/models/m%d/infer HTTP/1.1" % number
        cache.get(text_of(*USUAL, b"X-%d: %d" % (number, number), route=route))
        assert max(len(cache._routes), len(cache._lines), len(cache._names)) <= 20 + len(USUAL) + 1
    assert cache.known(text_of(*USUAL, b"X-99: 5", route=route)) is not None
    long = text_of(*USUAL, b"X: " + b"x" * 1024)
    cache.get(long)
    assert cache.known(long) is None


NAMES = (
    b"Host Content-Length content-length CONNECTION Connection Accept-Encoding X x-Y Inference-Header-Content-Length "
    b"Transfer-Encoding Expect Content-Encoding Upgrade TraceParent traceparent"
).split()
VALUES = [b"12 ", b" 12", b"", b"\xff", b"\x7f", b"a\x0bb", b"1" * 30, b"\t3\t"]
VALUES += b"here 5 007 gzip keep-alive Keep-Alive close chunked 100-continue identity".split()
LINES = st.tuples(st.sampled_from(NAMES), st.sampled_from([b":", b": ", b":\t", b" :"]), st.sampled_from(VALUES)).map(
    b"".join
)
ROUTES = st.sampled_from(
    [INFER, INFER, INFER, b"POST /v2/models/m/versions/2/infer?a HTTP/1.1", b"POST /v2/x HTTP/1.1"]
)
HEADS = st.tuples(ROUTES, st.lists(LINES, max_size=5), st.booleans()).map(
    lambda found: text_of(*([b"Host: here"] if found[2] else []), *found[1], route=found[0])
)


@settings(deadline=None, max_examples=300)
@given(st.lists(HEADS, min_size=2, max_size=12))
def test_any_heads_one_after_the_other(seen: list[bytes]) -> None:
    cache = HeadCache()
    for data in seen:
        assert outcome(cache.get, data) == outcome(parse_head, data)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(HEADS, min_size=2, max_size=12),
    st.sampled_from([("x",), ("x", "x-y"), ("connection",), ("host", "x"), ("accept-encoding",)]),
)
def test_a_head_tells_all_its_credentials_however_it_was_read(seen: list[bytes], names: tuple[str, ...]) -> None:
    cache = HeadCache(names)
    for data in seen:
        try:
            head = cache.get(data)
        except BadRequest:
            continue
        told = [field.partition(b":") for field in head.credentials]
        wanted = [(name, value) for name, value in head.headers if name.lower().decode() in names]
        assert [(name, value.lstrip(b" \t")) for name, _, value in told] == wanted
        assert all_of(head) | {"credentials": ()} == all_of(parse_head(data))


def test_a_known_head_tells_credentials_that_are_new() -> None:
    cache = HeadCache(["x-key"])
    cache.get(text_of(*USUAL, b"X-Key: a"))
    for lines in ([b"X-Key: a"], [b"X-Key:b"], [b"X-Key: b", b"X-Key: a"], []):
        head = cache.known(text_of(*lines, *USUAL))
        assert head is not None
        assert head.credentials == tuple(lines)
