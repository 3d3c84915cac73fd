"""Raw mode: a header length of zero makes the whole body the one input."""

import struct

from ..request import Case, Exchange, case, post

_FOUR = struct.pack("<4f", 1.5, -2.0, 0.0, 3.25)


def _raw(model: str, body: bytes, length: str = "0") -> Exchange:
    return post(f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": length})


CASES: tuple[Case, ...] = (
    case("raw/vector", _raw("echo_fp32", _FOUR)),
    case("raw/batch", _raw("echo_fp32_batch", _FOUR)),
    case("raw/plane", _raw("echo_int64_plane", struct.pack("<6q", *range(6)))),
    case("raw/plane_not_divisible", _raw("echo_int64_plane", struct.pack("<5q", *range(5)))),
    case("raw/fp16", _raw("echo_fp16", b"\x00\x3c\x00\xc0")),
    case("raw/string", _raw("echo_string", b"hello")),
    case("raw/string_empty", _raw("echo_string", b"")),
    case("raw/string_variable", _raw("echo_strings", b"hello")),
    case("raw/empty", _raw("echo_fp32", b"")),
    case("raw/odd_bytes", _raw("echo_fp32", b"12345")),
    case("raw/fixed_too_short", _raw("echo_fp32_batch", _FOUR[:12])),
    case("raw/fixed_too_long", _raw("echo_fp32_batch", _FOUR * 2)),
    case("raw/two_inputs", _raw("add_sub", _FOUR)),
    case("raw/no_inputs", _raw("constant", b"")),
    case("raw/optional_inputs", _raw("identity_all", _FOUR)),
    case("raw/two_unknown", _raw("echo_two_unknown", _FOUR)),
    case("raw/reshape", _raw("reshaped", _FOUR)),
    case("raw/zeros_in_length", _raw("echo_fp32", _FOUR, "00")),
    case("raw/json_is_bytes", _raw("echo_string", b'{"inputs":[]}')),
    case("raw/decoupled", _raw("decoupled", _FOUR[:4])),
    case("raw/statistics", _raw("echo_fp32_batch", _FOUR), stats="echo_fp32_batch"),
)
