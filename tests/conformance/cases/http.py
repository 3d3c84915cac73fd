"""HTTP itself: framing, keep-alive, pipelining, header spelling, and requests that break the rules."""

# ruff: noqa: E501 - a case reads best on one line

import json

from ..request import Case, Exchange, case, encode, get, infer, post, raw, send, tensor

_BODY = json.dumps({"inputs": [tensor("IN", "FP32", [2], [1, 2])]}).encode()
_PATH = "/v2/models/echo_fp32/infer"
_LIVE = encode("GET", "/v2/health/live")
_INFER = encode("POST", _PATH, _BODY)
# For requests that a server may well leave unanswered.
SHORT_S = 1.5
_CLOSE = {"Connection": "close"}


def _head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def _post(*lines: str) -> bytes:
    """The head of an inference request with these header lines after Host."""
    return _head(f"POST {_PATH} HTTP/1.1", "Host: localhost", *lines)


def _chunks(*parts: bytes) -> bytes:
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts) + b"0\r\n\r\n"


_CHUNKED = _post("Transfer-Encoding: chunked")


def _ending(data: bytes, method: str = "GET") -> Exchange:
    return raw(data, methods=(method,), timeout=SHORT_S, expect_close=True)


CASES: tuple[Case, ...] = (
    case("http/keep_alive", raw(_INFER, _INFER, _LIVE, methods=("POST", "POST", "GET"))),
    case("http/keep_alive_after_error", raw(
        encode("POST", _PATH, b"{"), _INFER, methods=("POST", "POST")
    )),
    case("http/keep_alive_after_404", raw(encode("POST", "/nosuch", b"{}"), _INFER, methods=("POST", "POST"))),
    case("http/keep_alive_after_405", raw(encode("PUT", "/v2", b"{}"), _LIVE, methods=("PUT", "GET"))),
    case("http/pipelined", raw(_INFER + _LIVE + _INFER, methods=("POST", "GET", "POST"), timeout=SHORT_S)),
    case("http/pipelined_many", raw(_INFER * 20, methods=("POST",) * 20, timeout=SHORT_S)),
    case("http/stays_open", raw(_LIVE, methods=("GET",), expect_close=True)),
    case("http/connection_close", send("GET", "/v2/health/live", None, _CLOSE, expect_close=True)),
    case("http/connection_close_infer", send("POST", _PATH, _BODY, _CLOSE, expect_close=True)),
    case("http/connection_close_upper", send("GET", "/v2/health/live", None, {"Connection": "CLOSE"}, expect_close=True)),
    case("http/version_1_0", _ending(_head("GET /v2/health/live HTTP/1.0"))),
    case("http/version_1_0_keep_alive", _ending(_head("GET /v2/health/live HTTP/1.0", "Connection: keep-alive"))),
    case("http/version_1_0_infer", _ending(
        _head(f"POST {_PATH} HTTP/1.0", f"Content-Length: {len(_BODY)}") + _BODY, "POST"
    )),
    case("http/version_2_0", _ending(_head("GET /v2/health/live HTTP/2.0", "Host: l"))),
    case("http/no_host", _ending(_head("GET /v2/health/live HTTP/1.1"))),
    case("http/two_hosts", _ending(_head("GET /v2/health/live HTTP/1.1", "Host: a", "Host: a"))),
    case("http/bad_host", _ending(_head("GET /v2/health/live HTTP/1.1", "Host: a b"))),
    case("http/head_too_long", _ending(_head("GET /v2/health/live HTTP/1.1", "Host: a", "X: " + "y" * 70_000))),
    case("http/too_many_fields", _ending(_head("GET /v2/health/live HTTP/1.1", "Host: a", *["X: y"] * 300))),
    case("http/http2_preface", _ending(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
    case("http/dots_model", get("/v2/models/...")),
    case("http/chunked", raw(_CHUNKED + _chunks(_BODY))),
    case("http/chunked_many", raw(_CHUNKED + _chunks(*(_BODY[i : i + 1] for i in range(len(_BODY)))))),
    case("http/chunked_slow", raw(_CHUNKED, b"5\r\n", _BODY[:5] + b"\r\n", _chunks(_BODY[5:]))),
    case("http/chunked_empty", raw(_CHUNKED + b"0\r\n\r\n")),
    case("http/chunked_extension", raw(
        _CHUNKED + f"{len(_BODY):x};name=value\r\n".encode() + _BODY + b"\r\n0\r\n\r\n"
    )),
    case("http/chunked_trailer", raw(
        _CHUNKED + f"{len(_BODY):X}\r\n".encode() + _BODY + b"\r\n0\r\nX-Trailer: 1\r\n\r\n", methods=("POST",)
    )),
    case("http/chunked_then_next", raw(_CHUNKED + _chunks(_BODY) + _LIVE, methods=("POST", "GET"))),
    case("http/chunked_bad_size", _ending(_CHUNKED + b"zz\r\n" + _BODY + b"\r\n0\r\n\r\n", "POST")),
    case("http/chunked_binary", raw(
        _post("Transfer-Encoding: chunked", "Inference-Header-Content-Length: 0") + _chunks(b"\0" * 4, b"\0" * 4)
    )),
    case("http/body_in_parts", raw(_INFER[:20], _INFER[20:-10], _INFER[-10:-3], _INFER[-3:])),
    case("http/expect_continue", raw(_post("Expect: 100-continue", f"Content-Length: {len(_BODY)}"), _BODY)),
    case("http/expect_continue_upper", raw(_post("Expect: 100-Continue", f"Content-Length: {len(_BODY)}"), _BODY)),
    case("http/expect_unknown", raw(_post("Expect: nosuch", f"Content-Length: {len(_BODY)}"), _BODY)),
    case("http/no_length", _ending(_post(), "POST"), note="a POST without framing has an empty body"),
    case("http/length_zero", raw(_post("Content-Length: 0"))),
    case("http/length_too_short", _ending(_post(f"Content-Length: {len(_BODY) - 5}") + _BODY, "POST")),
    case("http/length_too_long", raw(_post(f"Content-Length: {len(_BODY) + 5}") + _BODY, timeout=SHORT_S),
         note="both servers go on waiting for the rest"),
    case("http/length_text", _ending(_post("Content-Length: ten") + _BODY, "POST")),
    case("http/length_negative", _ending(_post("Content-Length: -5") + _BODY, "POST")),
    case("http/length_plus", _ending(_post(f"Content-Length: +{len(_BODY)}") + _BODY, "POST")),
    case("http/length_twice", _ending(_post(*[f"Content-Length: {len(_BODY)}"] * 2) + _BODY, "POST")),
    case("http/length_and_chunked", _ending(
        _post("Content-Length: 5", "Transfer-Encoding: chunked") + _chunks(_BODY), "POST"
    )),
    case("http/header_names_lower_case", raw(
        _head(f"POST {_PATH} HTTP/1.1", "host: l", f"content-length: {len(_BODY)}") + _BODY
    )),
    case("http/header_names_upper_case", raw(
        _head(f"POST {_PATH} HTTP/1.1", "HOST: l", f"CONTENT-LENGTH: {len(_BODY)}", "CONTENT-TYPE: X/Y") + _BODY
    )),
    case("http/header_many", post(_PATH, _BODY, {f"X-Header-{i}": "v" * 20 for i in range(60)})),
    case("http/header_long", post(_PATH, _BODY, {"X-Long": "v" * 5000})),
    case("http/header_empty_value", post(_PATH, _BODY, {"X-Empty": ""})),
    case("http/header_not_ascii", post(_PATH, _BODY, {"X-Text": "gr\u00fcn"})),
    case("http/header_no_colon", _ending(_head("GET /v2/health/live HTTP/1.1", "Host: l", "nocolon"))),
    case("http/header_space_before_colon", _ending(_head("GET /v2/health/live HTTP/1.1", "Host : l"))),
    case("http/line_feeds_only", _ending(b"GET /v2/health/live HTTP/1.1\nHost: l\n\n")),
    case("http/leading_empty_line", raw(b"\r\n" + _LIVE, methods=("GET",), timeout=SHORT_S)),
    case("http/garbage", _ending(b"this is not http\r\n\r\n")),
    case("http/tls_hello", _ending(bytes.fromhex("16030100a5010000a10303") + b"\0" * 160)),
    case("http/unknown_method", _ending(_head("BREW /v2/health/live HTTP/1.1", "Host: l"))),
    case("http/lower_case_method", _ending(_head("get /v2/health/live HTTP/1.1", "Host: l"))),
    case("http/trace_method", send("TRACE", "/v2/health/live")),
    case("http/connect_method", _ending(_head("CONNECT localhost:80 HTTP/1.1", "Host: l"), "GET")),
    case("http/get_with_body", send("GET", "/v2/health/live", "ignored")),
    case("http/get_with_body_then_next", raw(
        encode("GET", "/v2", b"ignored") + _LIVE, methods=("GET", "GET"), timeout=SHORT_S,
    )),
    case("http/query_on_infer", post(_PATH + "?a=b&c", _BODY)),
    case("http/fragment", get("/v2/health/live#part")),
    case("http/dots_in_path", get("/v2/models/../health/live")),
    case("http/dot_model", get("/v2/models/..")),
    case("http/encoded_null", get("/v2/models/%00")),
    case("http/bad_percent", get("/v2/models/%zz")),
    case("http/utf8_in_path", get("/v2/models/gr\u00fcn")),
    case("http/encoded_utf8_in_path", get("/v2/models/gr%C3%BCn")),
    case("http/space_in_path", _ending(_head("GET /v2/models/a b HTTP/1.1", "Host: l"))),
    case("http/long_path", get("/v2/models/" + "x" * 3000)),
    case("http/infer_content_type_answer", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [1], [1])]})),
    case("http/origin_header", get("/v2", {"Origin": "http://example.test"})),
    case("http/upgrade_header", get("/v2/health/live", {"Connection": "Upgrade", "Upgrade": "h2c"})),
)  # fmt: skip
