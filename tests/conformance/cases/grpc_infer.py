"""ModelInfer: where data comes from, what is refused and in which words, what comes back."""

# ruff: noqa: E501 - a case reads best on one line

import struct

from ..messages import infer, infer_request, output, tensor, unary
from ..request import ERROR_CODES, Case, Rpc, bytes_blob, case

_ROW = struct.pack("<16f", *range(16))
_ONES = struct.pack("<16f", *([1.0] * 16))
_A = tensor("INPUT0", "FP32", [1, 16])
_B = tensor("INPUT1", "FP32", [1, 16])
_ADD_SUB = infer_request("add_sub", [_A, _B], [_ROW, _ONES])
_FLOAT = struct.pack("<f", 1.5)

# Elements of every data type as raw bytes: the extremes among them.
_RAW = {
    "BOOL": b"\x01\x00\x01",
    "UINT8": b"\x00\x7f\xff",
    "UINT16": struct.pack("<3H", 0, 1, 65535),
    "UINT32": struct.pack("<3I", 0, 1, 2**32 - 1),
    "UINT64": struct.pack("<3Q", 0, 1, 2**64 - 1),
    "INT8": struct.pack("<3b", -128, 0, 127),
    "INT16": struct.pack("<3h", -(2**15), 0, 2**15 - 1),
    "INT32": struct.pack("<3i", -(2**31), 0, 2**31 - 1),
    "INT64": struct.pack("<3q", -(2**63), 0, 2**63 - 1),
    "FP16": struct.pack("<3e", 0.5, float("inf"), -0.0),
    "FP32": struct.pack("<3f", 0.1, float("nan"), -0.0),
    "FP64": struct.pack("<3d", 0.1, float("-inf"), 1e300),
    "BYTES": bytes_blob(b"one", b"", b"\xff\x00"),
    "BF16": b"\x80\x3f\x00\x00\xc0\x7f",
}
# Every data type's typed contents, then what does not fit it.
_TYPED = {
    "BOOL": {"bool_contents": [True, False, True]},
    "UINT8": {"uint_contents": [0, 127, 255]},
    "UINT16": {"uint_contents": [0, 1, 65535]},
    "UINT32": {"uint_contents": [0, 1, 2**32 - 1]},
    "UINT64": {"uint64_contents": [0, 1, 2**64 - 1]},
    "INT8": {"int_contents": [-128, 0, 127]},
    "INT16": {"int_contents": [-(2**15), 0, 2**15 - 1]},
    "INT32": {"int_contents": [-(2**31), 0, 2**31 - 1]},
    "INT64": {"int64_contents": [-(2**63), 0, 2**63 - 1]},
    "FP16": {"fp32_contents": [0.5, 1, 2]},
    "FP32": {"fp32_contents": [0.1, "NaN", -0.0]},
    "FP64": {"fp64_contents": [0.1, "-Infinity", 1e300]},
    "BYTES": {"bytes_contents": ["b25l", "", "/wA="]},
    "BF16": {"fp32_contents": [0.5, 1, 2]},
}
_MISFITS: dict[str, tuple[str, dict[str, object]]] = {
    "narrowed_int8": ("INT8", {"int_contents": [128, -129, 1000]}),
    "narrowed_uint8": ("UINT8", {"uint_contents": [256, 511, 70000]}),
    "narrowed_int16": ("INT16", {"int_contents": [32768, -32769, 70000]}),
    "narrowed_uint16": ("UINT16", {"uint_contents": [65536, 65537, 2**32 - 1]}),
    "int64_for_int32": ("INT32", {"int64_contents": [1, 2, 3]}),
    "int32_for_int64": ("INT64", {"int_contents": [1, 2, 3]}),
    "int_for_uint": ("UINT32", {"int_contents": [1, 2, 3]}),
    "uint_for_int": ("INT32", {"uint_contents": [1, 2, 3]}),
    "uint64_for_uint32": ("UINT32", {"uint64_contents": [1, 2, 3]}),
    "bool_for_int": ("INT32", {"bool_contents": [True, False, True]}),
    "fp64_for_fp32": ("FP32", {"fp64_contents": [1, 2, 3]}),
    "fp32_for_fp64": ("FP64", {"fp32_contents": [1, 2, 3]}),
    "bytes_for_fp32": ("FP32", {"bytes_contents": ["AACAPw==", "AACAPw==", "AACAPw=="]}),
    "fp32_for_bytes": ("BYTES", {"fp32_contents": [1, 2, 3]}),
    "too_few": ("FP32", {"fp32_contents": [1, 2]}),
    "too_many": ("FP32", {"fp32_contents": [1, 2, 3, 4]}),
    "too_few_bytes": ("BYTES", {"bytes_contents": ["b25l"]}),
    "too_many_bytes": ("BYTES", {"bytes_contents": ["b25l"] * 4}),
    "two_members": ("INT32", {"int_contents": [1, 2, 3], "int64_contents": [1, 2, 3]}),
    "two_members_wrong_first": ("INT64", {"int_contents": [1, 2, 3], "int64_contents": [1, 2, 3]}),
    "none": ("FP32", {}),
    "unknown_type": ("FLOAT", {"fp32_contents": [1, 2, 3]}),
    "empty_type": ("", {"fp32_contents": [1, 2, 3]}),
}


def _member(kind: str) -> str:
    return f"IN_{'STRING' if kind == 'BYTES' else kind}"


def _one(model: str, datatype: str, shape: list[int], *raw: bytes, **more: object) -> Rpc:
    return infer(model, tensor("IN", datatype, shape), raw=raw, **more)


def _pair(**more: object) -> Rpc:
    return infer("add_sub", _A, _B, raw=[_ROW, _ONES], **more)


def _command(text: str, **more: object) -> Rpc:
    return infer("behave", tensor("COMMAND", "BYTES", [1]), raw=[bytes_blob(text.encode())], **more)


def _inspect(**given: object) -> Rpc:
    return infer("inspect", given=given, outputs=[output("SEEN")])


def _scores(*asked: dict[str, object]) -> Rpc:
    return infer("scores", tensor("SCORES", "INT32", [5]), raw=[struct.pack("<5i", 3, -1, 10, 7, 4)], outputs=asked)


_PARAMETERS: dict[str, dict[str, object]] = {
    "int": {"a": 5, "b": -(2**63)},
    "bool": {"a": True, "b": False},
    "text": {"a": "value", "b": ""},
    "double": {"a": 1.5},
    "uint64": {"a": {"uint64_param": 7}},
    "unset": {"a": {}},
    "mixed": {"z": 1, "a": "x", "m": True},
    "empty_name": {"": 1},
    "reserved": {"triton_some": 1},
    "empty_final": {"triton_enable_empty_final_response": True},
    "empty_final_text": {"triton_enable_empty_final_response": "true"},
    "binary_output": {"binary_data_output": True},
    "sequence_id": {"sequence_id": 42},
    "sequence_id_negative": {"sequence_id": -1},
    "sequence_id_text": {"sequence_id": "corr"},
    "sequence_id_bool": {"sequence_id": True},
    "sequence_id_uint64": {"sequence_id": {"uint64_param": 3}},
    "sequence_flags": {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
    "sequence_start_false": {"sequence_id": 1, "sequence_start": False},
    "sequence_start_int": {"sequence_start": 1},
    "sequence_end_text": {"sequence_end": "true"},
    "priority": {"priority": 2},
    "priority_uint64": {"priority": {"uint64_param": 3}},
    "priority_negative": {"priority": -1},
    "priority_text": {"priority": "1"},
    "timeout": {"timeout": 1000000},
    "timeout_negative": {"timeout": -1},
    "timeout_text": {"timeout": "5"},
    "timeout_uint64": {"timeout": {"uint64_param": 5}},
}

CASES: tuple[Case, ...] = (
    case("grpc_infer/pair", _pair(), stats="add_sub"),
    case("grpc_infer/pair_with_id", _pair(id="my id")),
    case("grpc_infer/pair_version", _pair(model_version="1")),
    case("grpc_infer/pair_reversed_inputs", infer("add_sub", _B, _A, raw=[_ONES, _ROW])),
    case("grpc_infer/pair_twice_alike", _pair(), _pair(id="another"), note="the second follows a known plan"),
    case("grpc_infer/batch_of_eight", infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [8, 16]) for i in (0, 1)),
                                            raw=[_ROW * 8, _ONES * 8]), stats="add_sub"),
    case("grpc_infer/no_inputs", infer("constant")),
    case("grpc_infer/versions", infer("versions_all", model_version="10")),
    case("grpc_infer/version_latest", infer("versions_all")),
    *(
        case(f"grpc_infer/raw_{kind}", infer("identity_all", tensor(_member(kind), kind, [3]), raw=[data]))
        for kind, data in _RAW.items()
    ),
    *(
        case(f"grpc_infer/typed_{kind}", infer("identity_all", tensor(_member(kind), kind, [3], contents)))
        for kind, contents in _TYPED.items()
    ),
    *(
        case(f"grpc_infer/typed_{name}", infer("identity_all", tensor(
            f"IN_{'STRING' if kind == 'BYTES' else kind if kind in _RAW else 'FP32'}", kind, [3], contents
        )))
        for name, (kind, contents) in _MISFITS.items()
    ),
    case("grpc_infer/two_raw", infer("identity_all", tensor("IN_INT8", "INT8", [1]), tensor("IN_STRING", "BYTES", [1]),
                                     raw=[b"\x05", bytes_blob(b"x")])),
    case("grpc_infer/two_typed", infer("identity_all", tensor("IN_INT8", "INT8", [1], {"int_contents": [5]}),
                                       tensor("IN_STRING", "BYTES", [1], {"bytes_contents": ["eA=="]}))),
    case("grpc_infer/typed_and_raw", infer("add_sub", tensor("INPUT0", "FP32", [1, 16], {"fp32_contents": [1] * 16}), _B,
                                           raw=[_ONES])),
    case("grpc_infer/both_for_one", infer("echo_fp32", tensor("IN", "FP32", [1], {"fp32_contents": [1]}), raw=[_FLOAT])),
    case("grpc_infer/empty_contents_and_raw", infer("echo_fp32", tensor("IN", "FP32", [1], {}), raw=[_FLOAT])),
    case("grpc_infer/no_data", infer("echo_fp32", tensor("IN", "FP32", [1]))),
    case("grpc_infer/raw_for_one_of_two", infer("add_sub", _A, _B, raw=[_ROW])),
    case("grpc_infer/raw_more_than_inputs", infer("echo_fp32", tensor("IN", "FP32", [1]), raw=[_FLOAT, _FLOAT])),
    case("grpc_infer/raw_too_short", _one("echo_fp32", "FP32", [2], _FLOAT)),
    case("grpc_infer/raw_too_long", _one("echo_fp32", "FP32", [1], _FLOAT * 2)),
    case("grpc_infer/raw_empty", _one("echo_fp32", "FP32", [1], b"")),
    case("grpc_infer/raw_odd", _one("echo_fp32", "FP32", [1], b"abc")),
    case("grpc_infer/empty_tensor", _one("echo_fp32", "FP32", [0], b"")),
    case("grpc_infer/empty_tensor_typed", infer("echo_fp32", tensor("IN", "FP32", [0], {}))),
    case("grpc_infer/empty_plane", _one("echo_int64_plane", "INT64", [0, 3], b"")),
    case("grpc_infer/empty_strings", _one("echo_strings", "BYTES", [0], b"")),
    case("grpc_infer/strings", _one("echo_strings", "BYTES", [2], bytes_blob("grün ✓".encode(), b""))),
    case("grpc_infer/strings_cut_length", _one("echo_strings", "BYTES", [1], b"\x01\x00")),
    case("grpc_infer/strings_cut_text", _one("echo_strings", "BYTES", [1], b"\x09\x00\x00\x00abc")),
    case("grpc_infer/strings_one_too_many", _one("echo_strings", "BYTES", [1], bytes_blob(b"a", b"b"))),
    case("grpc_infer/strings_one_too_few", _one("echo_strings", "BYTES", [2], bytes_blob(b"a"))),
    case("grpc_infer/megabyte", _one("echo_fp32", "FP32", [262144], _FLOAT * 262144)),
    case("grpc_infer/unknown_model", _one("nosuch", "FP32", [1], _FLOAT)),
    case("grpc_infer/no_model", infer("")),
    case("grpc_infer/unknown_version", _pair(model_version="9")),
    case("grpc_infer/version_text", _pair(model_version="one")),
    case("grpc_infer/version_huge", _pair(model_version="99999999999999999999")),
    case("grpc_infer/version_negative", _pair(model_version="-1")),
    case("grpc_infer/unknown_input", infer("add_sub", _A, tensor("NOSUCH", "FP32", [1, 16]), raw=[_ROW, _ROW])),
    case("grpc_infer/input_missing", infer("add_sub", _A, raw=[_ROW], id="q")),
    case("grpc_infer/input_more", infer("add_sub", _A, _B, tensor("X", "FP32", [1, 16]), raw=[_ROW] * 3)),
    case("grpc_infer/input_twice", infer("add_sub", _A, _A, raw=[_ROW, _ROW])),
    case("grpc_infer/input_no_name", infer("echo_fp32", tensor("", "FP32", [1]), raw=[_FLOAT])),
    case("grpc_infer/wrong_type", infer("add_sub", _A, tensor("INPUT1", "INT32", [1, 16]), raw=[_ROW, _ROW])),
    case("grpc_infer/unknown_type", _one("echo_fp32", "FLOAT", [1], _FLOAT)),
    case("grpc_infer/config_type_name", _one("echo_fp32", "TYPE_FP32", [1], _FLOAT)),
    case("grpc_infer/empty_type", _one("echo_fp32", "", [1], _FLOAT)),
    case("grpc_infer/wrong_shape", infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [1, 8]) for i in (0, 1)),
                                         raw=[_ROW[:32]] * 2)),
    case("grpc_infer/wrong_rank", infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [16]) for i in (0, 1)), raw=[_ROW] * 2)),
    case("grpc_infer/wrong_shape_with_id", infer("echo_int64_plane", tensor("IN", "INT64", [1]), raw=[b"\0" * 8], id="q")),
    case("grpc_infer/no_shape", _one("echo_fp32", "FP32", [], _FLOAT)),
    case("grpc_infer/no_shape_batched", _one("echo_fp32_batch", "FP32", [], _FLOAT)),
    case("grpc_infer/negative_dim", _one("echo_fp32", "FP32", [-1], _FLOAT)),
    case("grpc_infer/batch_too_large", infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [9, 16]) for i in (0, 1)),
                                             raw=[_ROW * 9] * 2)),
    case("grpc_infer/batch_zero", infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [0, 16]) for i in (0, 1)), raw=[b""] * 2)),
    case("grpc_infer/batch_mismatch", infer("add_sub", _A, tensor("INPUT1", "FP32", [2, 16]), raw=[_ROW, _ROW * 2])),
    case("grpc_infer/one_output", _pair(outputs=[output("OUTPUT1")])),
    case("grpc_infer/outputs_reversed", _pair(outputs=[output("OUTPUT1"), output("OUTPUT0")])),
    case("grpc_infer/output_twice", _pair(outputs=[output("OUTPUT0"), output("OUTPUT0")])),
    case("grpc_infer/output_unknown", _pair(outputs=[output("NOSUCH")])),
    case("grpc_infer/output_unknown_with_id", _pair(outputs=[output("NOSUCH")], id="q")),
    case("grpc_infer/output_no_name", _pair(outputs=[output("")])),
    case("grpc_infer/output_parameter", _pair(outputs=[output("OUTPUT0", binary_data=True)])),
    case("grpc_infer/input_parameter", infer("echo_fp32", tensor("IN", "FP32", [1], None, some=1), raw=[_FLOAT])),
    case("grpc_infer/classes", _scores(output("F32", classification=2))),
    case("grpc_infer/classes_all", _scores(output("F32", classification=9))),
    case("grpc_infer/classes_no_labels", _scores(output("F64", classification=3))),
    case("grpc_infer/classes_int", _scores(output("I8", classification=3), output("U8"))),
    case("grpc_infer/classes_zero", _scores(output("F32", classification=0))),
    case("grpc_infer/classes_negative", _scores(output("F32", classification=-1))),
    case("grpc_infer/classes_text", _scores(output("F32", classification="2"))),
    case("grpc_infer/classes_bool", _scores(output("TRUTH", classification=1))),
    case("grpc_infer/classes_fp16", _scores(output("F16", classification=1))),
    case("grpc_infer/classes_unknown_output", _scores(output("NOSUCH", classification=1))),
    case("grpc_infer/region_unknown", infer("echo_fp32", tensor(
        "IN", "FP32", [1], None, shared_memory_region="nosuch", shared_memory_byte_size=4,
    ))),
    case("grpc_infer/region_without_size", infer("echo_fp32", tensor("IN", "FP32", [1], None, shared_memory_region="r"))),
    case("grpc_infer/region_offset_alone", infer("echo_fp32", tensor("IN", "FP32", [1], None, shared_memory_offset=4),
                                                 raw=[_FLOAT])),
    case("grpc_infer/region_and_contents", infer("echo_fp32", tensor(
        "IN", "FP32", [1], {"fp32_contents": [1]}, shared_memory_region="nosuch", shared_memory_byte_size=4,
    ))),
    case("grpc_infer/region_output_unknown", _pair(outputs=[output(
        "OUTPUT0", shared_memory_region="nosuch", shared_memory_byte_size=64,
    )])),
    case("grpc_infer/region_output_and_classes", _scores(output(
        "F32", classification=1, shared_memory_region="nosuch", shared_memory_byte_size=64,
    ))),
    *(case(f"grpc_infer/parameter_{name}", _inspect(**given)) for name, given in _PARAMETERS.items()),
    case("grpc_infer/id_unicode", infer("inspect", id="grün ✓", outputs=[output("SEEN")])),
    case("grpc_infer/requested_outputs_seen", infer("inspect", outputs=[output("OTHER"), output("SEEN")])),
    case("grpc_infer/sequence_no_id", infer("sequence", tensor("IN", "INT32", [1, 1]), raw=[b"\1\0\0\0"])),
    *(case(f"grpc_infer/code_{code}", _command(f"code_{code}")) for code in ERROR_CODES),
    *(
        case(f"grpc_infer/model_{name}", _command(name))
        for name in ("raise", "raise_unicode", "raise_silent", "tuple", "two", "error_and_tensors", "no_outputs",
                     "unknown_output", "other_output", "both_reversed", "twice", "wrong_dtype", "wrong_shape", "scalar",
                     "empty_tensor", "empty_bytes", "parameters", "parameters_empty", "numbers_as_objects", "not_utf8",
                     "unicode", "specials", "strided")
    ),
    case("grpc_infer/model_error_with_id", _command("code_NOT_FOUND", id="my id")),
    case("grpc_infer/model_error_long", _command("raise_deep")),
    case("grpc_infer/model_error_counted", _command("code_NOT_FOUND"), stats="behave"),
    case("grpc_infer/output_missing_asked", _command("other_output", outputs=[output("RESULT")])),
    case("grpc_infer/decoupled", infer("stream", tensor("IN", "INT32", [1]), raw=[b"\1\0\0\0"])),
    case("grpc_infer/gzip", _pair(how={"compression": "gzip"})),
    case("grpc_infer/deflate", _pair(how={"compression": "deflate"})),
    case("grpc_infer/metadata_given", _pair(how={"metadata": (("x-some", "value"), ("triton-x", "1"))})),
    case("grpc_infer/deadline_kept", _pair(how={"deadline": 4.0})),
    case("grpc_infer/deadline_exceeded", infer("slow", tensor("DELAY", "INT32", [1]), raw=[struct.pack("<i", 800)],
                                               how={"deadline": 0.2, "timeout": 3.0})),
    case("grpc_infer/fine_after_deadline", infer("slow", tensor("DELAY", "INT32", [1]), raw=[struct.pack("<i", 1)])),
    case("grpc_infer/queue_timeout_given", infer("queue_limited", tensor("DELAY", "INT32", [1, 1]),
                                                 raw=[struct.pack("<i", 5)], given={"timeout": 2000000})),
    case("grpc_infer/malformed_cut", unary("ModelInfer", _ADD_SUB[:-3])),
    case("grpc_infer/malformed_text", unary("ModelInfer", b"{}")),
    case("grpc_infer/malformed_tag_zero", unary("ModelInfer", b"\x00\x01")),
    case("grpc_infer/malformed_group_end", unary("ModelInfer", b"\x0c")),
    case("grpc_infer/malformed_varint", unary("ModelInfer", b"\xff" * 11)),
    case("grpc_infer/malformed_input", unary("ModelInfer", b"\x0a\x09echo_fp32\x2a\x02\x0a\x09")),
    case("grpc_infer/malformed_name_not_utf8", unary("ModelInfer", b"\x0a\x02\xff\xfe")),
    case("grpc_infer/malformed_id_not_utf8", unary("ModelInfer", _ADD_SUB + b"\x1a\x02\xff\xfe")),
    case("grpc_infer/malformed_wrong_wire_type", unary("ModelInfer", _ADD_SUB + b"\x18\x05")),
    case("grpc_infer/unknown_field", unary("ModelInfer", _ADD_SUB + b"\xd2\x3e\x02ab")),
    case("grpc_infer/name_twice", unary("ModelInfer", b"\x0a\x06nosuch" + _ADD_SUB)),
    case("grpc_infer/raw_before_inputs", unary("ModelInfer", infer_request("add_sub", (), [_ROW, _ONES])
                                               + infer_request("", [_A, _B]))),
    case("grpc_infer/empty_message", unary("ModelInfer", b"")),
    case("grpc_infer/fine_after_malformed", _pair()),
)  # fmt: skip
