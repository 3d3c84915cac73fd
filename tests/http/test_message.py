"""What a head says to the connection and to inference, and which credentials are known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.http.access import HttpAccess
from stubserve.http.message import BadRequest, RequestHead, parse_head

INFER = b"POST /v2/models/m/infer HTTP/1.1"
GENERATE = b"POST /v2/models/m/generate HTTP/1.1"


def text_of(*lines: bytes, route: bytes = INFER) -> bytes:
    return b"\r\n".join([route, *lines, b"", b""])


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([b"traceparent: b ", b"traceparent: c"], "b"),
        ([b"traceparent:", b"traceparent: c"], ""),
        ([], None),
    ],
)
def test_the_first_traceparent_counts(lines: list[bytes], told: str | None) -> None:
    assert parse_head(text_of(b"Host: here", *lines)).trace_context() == told


@pytest.mark.parametrize(
    ("route", "infer", "generate"),
    [
        (INFER, ("m", ""), None),
        (b"POST /v2/models/a%2Fb%20c/versions/2/infer?x HTTP/1.1", ("a/b c", "2"), None),
        (b"POST http://here/v2/models/m/infer HTTP/1.1", None, None),
        (b"POST /v2/models/m/versions/x/infer HTTP/1.1", None, None),
        (b"GET /v2/models/m/infer HTTP/1.1", None, None),
        (GENERATE, None, ("m", "")),
        (b"POST /v2/models/m/versions/2/generate?x HTTP/1.1", None, ("m", "2")),
        (b"POST /v2/models/m%20n/generate HTTP/1.1", None, None),
        (b"POST /v2/models/m/generate HTTP/1.0", None, None),
        (b"POST /v2/models/m/generate_stream HTTP/1.1", None, None),
    ],
)
def test_routes(route: bytes, infer: tuple[str, str] | None, generate: tuple[str, str] | None) -> None:
    head = parse_head(text_of(b"Host: here", route=route))
    assert (head.infer, head.generate) == (infer, generate)


@pytest.mark.parametrize(
    "line", [b"Connection: close", b"Content-Encoding: gzip", b"Expect: 100-continue", b"Transfer-Encoding: chunked"]
)
def test_what_is_unusual_about_generate_is_for_its_route(line: bytes) -> None:
    assert parse_head(text_of(b"Host: here", line, route=GENERATE)).generate is None


NAMES = (
    b"Host Content-Length content-length CONNECTION Connection Accept-Encoding X x-Y Inference-Header-Content-Length "
    b"Transfer-Encoding Expect Content-Encoding Upgrade TraceParent traceparent"
).split()
VALUES = [b"12 ", b" 12", b"", b"\xff", b"\x7f", b"a\x0bb", b"1" * 30, b"\t3\t"]
VALUES += b"here 5 007 gzip keep-alive Keep-Alive close chunked 100-continue identity".split()
LINES = st.tuples(st.sampled_from(NAMES), st.sampled_from([b":", b": ", b":\t", b" :"]), st.sampled_from(VALUES)).map(
    b"".join
)
ROUTES = st.sampled_from([INFER, GENERATE, b"POST /v2/x HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.0"])
HEADS = st.tuples(ROUTES, st.lists(LINES, max_size=5), st.booleans()).map(
    lambda found: text_of(*([b"Host: here"] if found[2] else []), *found[1], route=found[0])
)


def last(head: RequestHead, name: str) -> bytes | None:
    return next(reversed(head.values(name)), None)


@settings(deadline=None, max_examples=300)
@given(HEADS)
def test_any_head_is_told_by_its_fields(data: bytes) -> None:
    try:
        head = parse_head(data)
    except BadRequest:
        return
    codings = head.values("transfer-encoding")
    assert len(head.values("host")) == 1 or (not head.values("host") and data.startswith(b"POST /v2/models/m/infer HT"))
    assert all(coding.lower() == b"chunked" for coding in codings)
    assert head.chunked == bool(codings)
    assert head.content_length == (0 if codings else int(last(head, "content-length") or 0))
    assert head.header_length == last(head, "inference-header-content-length")
    assert head.accept_encoding == last(head, "accept-encoding")
    assert head.content_encoding == last(head, "content-encoding")
    assert head.expects_continue == ((last(head, "expect") or b"").lower() == b"100-continue")
    assert head.trace_parent == next(iter(head.values("traceparent")), None)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.lists(st.sampled_from([b"X-Key: a", b"x-key:a", b"X-Key: b", b"X-Other: a", b"X-Key:"])), min_size=2)
)
def test_credentials_that_are_known_admit_whom_the_rules_admit(asked: list[list[bytes]]) -> None:
    rules = {"inference": ("X-Key", "a")}
    access = HttpAccess(rules, None, ())
    for lines in asked:
        head = parse_head(text_of(b"Host: here", *lines))
        refusal = access.refusal("inference", head.values)
        for _ in range(2):
            found = access.inference_refusal(head)
            assert (found and found.message) == (refusal and refusal.message)
            assert (found is None) == (b"a" in head.values("x-key"))
