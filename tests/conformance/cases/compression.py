"""Compressed request bodies and compressed answers."""

# ruff: noqa: E501 - a case reads best on one line

import gzip
import json
import struct
import zlib

from ..request import Case, Exchange, case, get, post, tensor

_PATH = "/v2/models/echo_fp32/infer"
_BODY = json.dumps({"inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4])]}).encode()
_HEAD = json.dumps({"inputs": [tensor("IN", "FP32", [4], binary_data_size=16)]}).encode()
_BINARY = _HEAD + struct.pack("<4f", 1, 2, 3, 4)
_LONG = json.dumps({"inputs": [tensor("IN", "FP32", [2000], [0] * 2000)]}).encode()
_BINARY_OUT = json.dumps(
    {"inputs": [tensor("IN", "FP32", [400], [1] * 400)], "parameters": {"binary_data_output": True}}
).encode()


def _encoded(body: bytes, encoding: str, **more: str) -> Exchange:
    return post(_PATH, body, {"Content-Encoding": encoding, **{k.replace("_", "-"): v for k, v in more.items()}})


def _raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def _accept(value: str, body: bytes = _LONG) -> Exchange:
    return post(_PATH, body, {"Accept-Encoding": value})


CASES: tuple[Case, ...] = (
    case("compression/gzip", _encoded(gzip.compress(_BODY), "gzip")),
    case("compression/deflate", _encoded(zlib.compress(_BODY), "deflate")),
    case("compression/deflate_is_gzip", _encoded(gzip.compress(_BODY), "deflate")),
    case("compression/gzip_is_deflate", _encoded(zlib.compress(_BODY), "gzip")),
    case("compression/deflate_without_header", _encoded(_raw_deflate(_BODY), "deflate")),
    case("compression/gzip_upper_case", _encoded(gzip.compress(_BODY), "GZIP")),
    case("compression/identity", _encoded(_BODY, "identity")),
    case("compression/empty_name", _encoded(_BODY, "")),
    case("compression/unknown", _encoded(_BODY, "br")),
    case("compression/two_names", _encoded(gzip.compress(_BODY), "gzip, deflate")),
    case("compression/not_compressed", _encoded(_BODY, "gzip")),
    case("compression/truncated", _encoded(gzip.compress(_LONG)[:-12], "gzip")),
    case("compression/damaged", _encoded(gzip.compress(_BODY)[:12] + b"\xff\xff\xff\xff" + gzip.compress(_BODY)[16:], "gzip")),
    case("compression/empty_body", _encoded(b"", "gzip")),
    case("compression/two_members", _encoded(gzip.compress(_BODY[:20]) + gzip.compress(_BODY[20:]), "gzip")),
    case("compression/trailing_bytes", _encoded(gzip.compress(_BODY) + b"tail", "gzip")),
    case("compression/binary_request", _encoded(
        gzip.compress(_BINARY), "gzip", Inference_Header_Content_Length=str(len(_HEAD))
    )),
    case("compression/binary_request_deflate", _encoded(
        zlib.compress(_BINARY), "deflate", Inference_Header_Content_Length=str(len(_HEAD))
    )),
    case("compression/raw_mode", _encoded(gzip.compress(struct.pack("<2f", 1, 2)), "gzip", Inference_Header_Content_Length="0")),
    case("compression/bomb", _encoded(gzip.compress(b" " * (1 << 20) + _BODY), "gzip")),
    case("compression/unknown_model", post(
        "/v2/models/nosuch/infer", b"not compressed", {"Content-Encoding": "gzip"}
    )),
    *(
        case(f"compression/accept_{name}", _accept(value))
        for name, value in {
            "gzip": "gzip",
            "deflate": "deflate",
            "identity": "identity",
            "unknown": "br",
            "star": "*",
            "empty": "",
            "both": "gzip, deflate",
            "both_other_order": "deflate, gzip",
            "no_space": "deflate,gzip",
            "weights": "gzip;q=0.5, deflate;q=0.8",
            "weights_spaces": "gzip; q=0.9, deflate; q=0.8",
            "identity_first": "identity, gzip",
            "identity_heavier": "gzip;q=0.5, identity;q=0.9",
            "zero": "gzip;q=0",
            "zero_and_one": "gzip;q=0, deflate;q=0.1",
            "bad_weight": "gzip;q=abc",
            "weight_above_one": "gzip;q=0.5, deflate;q=7",
            "upper_case": "GZIP",
            "unknown_and_gzip": "br;q=1.0, gzip;q=0.4",
        }.items()
    ),
    case("compression/accept_small", _accept("gzip", _BODY)),
    case("compression/accept_binary_output", _accept("gzip", _BINARY_OUT)),
    case("compression/accept_binary_output_deflate", _accept("deflate", _BINARY_OUT)),
    case("compression/accept_error", _accept("gzip", b"{")),
    case("compression/accept_metadata", get("/v2/models/add_sub", {"Accept-Encoding": "gzip"})),
    case("compression/both_ways", post(_PATH, gzip.compress(_LONG), {
        "Content-Encoding": "gzip", "Accept-Encoding": "deflate",
    })),
)  # fmt: skip
