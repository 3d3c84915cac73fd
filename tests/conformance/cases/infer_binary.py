"""The binary tensor extension: payloads after the JSON header, in both directions."""

# ruff: noqa: E501 - a case reads best on one line

import json
import struct

from ..request import Case, Exchange, bytes_blob, case, infer, post, tensor

_FOUR = struct.pack("<4f", 1.5, -2.0, 0.0, 3.25)
_SIZES = {
    "BOOL": (b"\x01\x00\x02", 3),
    "UINT8": (b"\x00\x7f\xff", 3),
    "UINT16": (struct.pack("<2H", 1, 65535), 2),
    "UINT32": (struct.pack("<2I", 1, 2**32 - 1), 2),
    "UINT64": (struct.pack("<2Q", 1, 2**64 - 1), 2),
    "INT8": (b"\x80\x7f", 2),
    "INT16": (struct.pack("<2h", -1, 32767), 2),
    "INT32": (struct.pack("<2i", -1, 2**31 - 1), 2),
    "INT64": (struct.pack("<2q", -1, 2**63 - 1), 2),
    "FP16": (b"\x00\x3c\x00\xc0\x00\x7e", 3),
    "FP32": (struct.pack("<3f", 1.5, float("inf"), float("nan")), 3),
    "FP64": (struct.pack("<2d", 0.1, -1e300), 2),
    "BF16": (b"\x80\x3f\x00\xc0", 2),
    "BYTES": (bytes_blob(b"", b"text", b"\xff\x00"), 3),
}


def _typed(kind: str, shape: list[int], size: int, binary_out: bool = True) -> dict[str, object]:
    name = "STRING" if kind == "BYTES" else kind
    return {
        "inputs": [tensor(f"IN_{name}", kind, shape, binary_data_size=size)],
        "outputs": [{"name": f"OUT_{name}", "parameters": {"binary_data": binary_out}}],
    }


def _echo(shape: list[int], size: int, **more: object) -> dict[str, object]:
    return {"inputs": [tensor("IN", "FP32", shape, binary_data_size=size)], **more}


def _strings(blob: bytes, shape: list[int], model: str = "echo_strings") -> Exchange:
    return infer(model, {"inputs": [tensor("IN", "BYTES", shape, binary_data_size=len(blob))]}, blob)


_PAIR = [tensor(f"INPUT{i}", "FP32", [1, 16], binary_data_size=64) for i in (0, 1)]
_ROWS = struct.pack("<32f", *range(32))
_BINARY = {"parameters": {"binary_data_output": True}}


# The length of the JSON that _header sends.
_LENGTH = len(json.dumps(_echo([4], 16), separators=(",", ":")))


def _header(value: str, model: str = "echo_fp32") -> Exchange:
    """A good binary request for four floats with ``value`` as its header length."""
    return infer(model, _echo([4], 16), _FOUR, {"Inference-Header-Content-Length": value})


CASES: tuple[Case, ...] = (
    *(
        case(f"binary/type_{kind}", infer("identity_all", _typed(kind, [count], len(data)), data))
        for kind, (data, count) in _SIZES.items()
    ),
    *(
        case(f"binary/to_json_{kind}", infer("identity_all", _typed(kind, [count], len(data), False), data))
        for kind, (data, count) in _SIZES.items()
    ),
    *(
        case(f"binary/batch_{kind}", infer("identity_batch", _typed(kind, [1, count], len(data)), data))
        for kind, (data, count) in _SIZES.items()
    ),
    case("binary/two_inputs", infer("add_sub", {"inputs": _PAIR, **_BINARY}, _ROWS)),
    case("binary/two_inputs_swapped", infer("add_sub", {"inputs": _PAIR[::-1], **_BINARY}, _ROWS)),
    case("binary/mixed_inputs", infer("add_sub", {
        "inputs": [_PAIR[0], tensor("INPUT1", "FP32", [1, 16], [1] * 16)],
    }, _ROWS[:64])),
    case("binary/mixed_outputs", infer("add_sub", {
        "inputs": _PAIR,
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}],
    }, _ROWS)),
    case("binary/output_overrides_request", infer("add_sub", {
        "inputs": _PAIR, **_BINARY,
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}, {"name": "OUTPUT1"}],
    }, _ROWS)),
    case("binary/json_in_binary_out", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [2], [1, 2])], **_BINARY})),
    case("binary/id", infer("echo_fp32", {"id": "7", **_echo([4], 16), **_BINARY}, _FOUR)),
    case("binary/no_length_header", post("/v2/models/echo_fp32/infer", (
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}' + _FOUR
    ))),
    case("binary/no_length_header_no_payload", infer("echo_fp32", _echo([4], 16))),
    case("binary/short_payload", infer("echo_fp32", _echo([4], 16), _FOUR[:10])),
    case("binary/empty_payload", infer("echo_fp32", _echo([4], 16), b"")),
    case("binary/long_payload", infer("echo_fp32", _echo([4], 16), _FOUR + b"xy")),
    case("binary/long_payload_json_data", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [1], [1])]}, b"abcd")),
    case("binary/size_less_than_shape", infer("echo_fp32", _echo([4], 12), _FOUR[:12])),
    case("binary/size_more_than_shape", infer("echo_fp32", _echo([3], 16), _FOUR)),
    case("binary/size_zero", infer("echo_fp32", _echo([0], 0, **_BINARY), b"")),
    case("binary/size_zero_wrong", infer("echo_fp32", _echo([1], 0), b"")),
    case("binary/size_negative", infer("echo_fp32", _echo([4], -16), _FOUR)),
    case("binary/size_text", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [4], binary_data_size="16")],
    }, _FOUR)),
    case("binary/size_float", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [4], binary_data_size=16.0)]}, _FOUR)),
    case("binary/size_null", infer("echo_fp32", {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": None}}],
    }, _FOUR)),
    case("binary/size_and_data", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4], binary_data_size=16)],
    }, _FOUR)),
    case("binary/binary_data_number", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [1], [1])], "outputs": [{"name": "OUT", "parameters": {"binary_data": 1}}],
    })),
    case("binary/binary_data_text", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [1], [1])], "outputs": [{"name": "OUT", "parameters": {"binary_data": "true"}}],
    })),
    case("binary/binary_data_output_number", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [1], [1])], "parameters": {"binary_data_output": 1},
    })),
    case("binary/strings", _strings(bytes_blob(b"one", b"", b"three"), [3])),
    case("binary/strings_one", _strings(bytes_blob(b"\xff\xfe\x00"), [1], "echo_string")),
    case("binary/strings_binary_out", infer("echo_strings", {
        "inputs": [tensor("IN", "BYTES", [2], ["a", "gr\u00fcn"])], **_BINARY,
    })),
    case("binary/strings_empty", _strings(b"", [0])),
    case("binary/strings_too_few", _strings(bytes_blob(b"one"), [2])),
    case("binary/strings_too_many", _strings(bytes_blob(b"one", b"two"), [1])),
    case("binary/strings_short_length", _strings(bytes_blob(b"one") + b"\x01\x00", [2])),
    case("binary/strings_only_length_part", _strings(b"\x05\x00", [1])),
    case("binary/strings_no_bytes", _strings(b"", [1])),
    case("binary/strings_first_overruns", _strings(b"\x64\x00\x00\x00abc" + bytes_blob(b"x"), [2])),
    case("binary/strings_last_overruns", _strings(bytes_blob(b"one") + b"\x64\x00\x00\x00abc", [2])),
    case("binary/header_length_text", _header("ten")),
    case("binary/header_length_negative", _header("-5")),
    case("binary/header_length_too_large", _header("100000")),
    case("binary/header_length_huge", _header("99999999999")),
    case("binary/header_length_empty", _header("")),
    case("binary/header_length_trailing", _header("5abc")),
    case("binary/header_length_float", _header(f"{_LENGTH}.0")),
    case("binary/header_length_plus", _header(f"+{_LENGTH}")),
    case("binary/header_length_short", _header("10")),
    case("binary/header_length_one_more", infer("echo_fp32", _echo([4], 16), _FOUR, {
        "Inference-Header-Content-Length": str(_LENGTH + 1),
    })),
    case("binary/header_length_whole", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [1], [1])]}, b"")),
    case("binary/header_name_lower_case", post("/v2/models/echo_fp32/infer", json.dumps(_echo([4], 16), separators=(",", ":")).encode() + _FOUR, {
        "inference-header-content-length": str(_LENGTH),
    })),
    case("binary/large", infer("echo_fp32", _echo([262144], 1 << 20, **_BINARY), bytes(range(256)) * 4096)),
    case("binary/region_unknown", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [4], shared_memory_region="r", shared_memory_byte_size=16)],
    })),
    case("binary/region_and_data", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4], shared_memory_region="r", shared_memory_byte_size=16)],
    })),
    case("binary/region_and_binary", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [4], shared_memory_region="r", binary_data_size=16)],
    }, _FOUR)),
    case("binary/region_output_conflict", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [1], [1])],
        "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", "binary_data": True}}],
    })),
    case("binary/region_output_classification", infer("echo_fp32", {
        "inputs": [tensor("IN", "FP32", [1], [1])],
        "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", "classification": 1}}],
    })),
)  # fmt: skip
