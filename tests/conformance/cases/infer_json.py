"""Inference with JSON tensors: every datatype, shapes, nesting, numbers, strings, ids and requested outputs."""

# ruff: noqa: E501 - a case reads best on one line

import json

from ..request import Case, case, infer, post, tensor

_ROW = list(range(16))
_TWO = [tensor("INPUT0", "FP32", [1, 16], _ROW), tensor("INPUT1", "FP32", [1, 16], [1] * 16)]


def _one(kind: str, data: object, shape: list[int] | None = None, model: str = "identity_all") -> dict[str, object]:
    """A request for the one input of ``kind`` of a model with all types, asking for its output."""
    count = len(data) if isinstance(data, list) else 1
    name = "STRING" if kind == "BYTES" else kind
    return {
        "inputs": [tensor(f"IN_{name}", kind, shape or [count], data)],
        "outputs": [{"name": f"OUT_{name}"}],
    }


def _fp32(data: str, shape: str = "[4]") -> str:
    """A request for echo_fp32 with ``data`` and ``shape`` as raw JSON text."""
    return f'{{"inputs":[{{"name":"IN","datatype":"FP32","shape":{shape},"data":{data}}}]}}'


def _nested(depth: int) -> str:
    return "[" * depth + "1,2,3,4" + "]" * depth


_VALUES: dict[str, list[object]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 7, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 4294967295],
    "UINT64": [0, 18446744073709551615],
    "INT8": [-128, 0, 127],
    "INT16": [-32768, 32767],
    "INT32": [-2147483648, 2147483647],
    "INT64": [-9223372036854775808, 9223372036854775807],
    "FP16": [1.5],
    "FP32": [0.1, -1.5, 3.4028235e38, 1e-45, 16777217, 0.30000001192092896],
    "FP64": [0.1, 1.7976931348623157e308, 5e-324, 12345678901234567, 1e22],
    "BF16": [1.5],
    "BYTES": ["", "text", "gr\u00fcn \u2713", 'quote " back \\ slash / tab \t', "\u0001\u007f"],
}

CASES: tuple[Case, ...] = (
    case("json/add_sub", infer("add_sub", {"inputs": _TWO})),
    case("json/add_sub_version", post("/v2/models/add_sub/versions/1/infer", json.dumps({"inputs": _TWO}))),
    case("json/batch", infer("add_sub", {"inputs": [tensor(f"INPUT{i}", "FP32", [2, 16], _ROW * 2) for i in (0, 1)]})),
    case("json/inputs_swapped", infer("add_sub", {"inputs": _TWO[::-1]})),
    case("json/id", infer("add_sub", {"id": "abc", "inputs": _TWO})),
    case("json/id_empty", infer("add_sub", {"id": "", "inputs": _TWO})),
    case("json/id_unicode", infer("add_sub", {"id": 'gr\u00fcn "q" \\', "inputs": _TWO})),
    case("json/output_one", infer("add_sub", {"inputs": _TWO, "outputs": [{"name": "OUTPUT1"}]})),
    case("json/output_order", infer("add_sub", {"inputs": _TWO, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]})),
    case("json/outputs_empty", infer("add_sub", {"inputs": _TWO, "outputs": []})),
    case("json/unknown_members", infer("add_sub", {"inputs": _TWO, "nosuch": [1], "another": {"a": None}})),
    case("json/unknown_input_members", infer("add_sub", {"inputs": [{**_TWO[0], "extra": 1}, _TWO[1]]})),
    case("json/white_space", infer("add_sub", json.dumps({"inputs": _TWO}, indent=4))),
    case("json/content_type_text", infer("add_sub", {"inputs": _TWO}, headers={"Content-Type": "text/plain"})),
    *(case(f"json/type_{kind}", infer("identity_all", _one(kind, data))) for kind, data in _VALUES.items()),
    *(
        case(f"json/batch_type_{kind}", infer("identity_batch", _one(kind, data, [1, len(data)])))
        for kind, data in _VALUES.items()
        if kind not in ("FP16", "BF16")
    ),
    case("json/fixed_dims", infer("identity_fixed", _one("INT32", [1, 2, 3, 4], [2, 2]))),
    case("json/fixed_dims_nested", infer("identity_fixed", _one("INT32", [[1, 2], [3, 4]], [2, 2]))),
    case("json/fixed_dims_wrong", infer("identity_fixed", _one("INT32", [1, 2, 3, 4], [4]))),
    case("json/fixed_strings", infer("identity_fixed", _one("BYTES", [["a", "b"], ["c", "d"]], [2, 2]))),
    case("json/two_types", infer("identity_all", {
        "inputs": [tensor("IN_INT8", "INT8", [2], [1, 2]), tensor("IN_BOOL", "BOOL", [1], [True])],
    })),
    case("json/all_outputs_of_one_input", infer("identity_all", {"inputs": [tensor("IN_INT8", "INT8", [1], [1])]}),
         note="outputs that the model does not return are simply absent"),
    case("json/output_not_returned", infer("identity_all", {
        "inputs": [tensor("IN_INT8", "INT8", [1], [1])], "outputs": [{"name": "OUT_BOOL"}],
    })),
    case("json/no_inputs_model", infer("constant", {"inputs": []})),
    case("json/no_inputs_model_empty_object", infer("constant", {})),
    case("json/no_inputs_model_given_one", infer("constant", {"inputs": [tensor("X", "FP32", [1], [1])]})),
    case("json/optional_absent", infer("optional_one", {"inputs": [tensor("IN0", "FP32", [1, 2], [1, 2])]})),
    case("json/optional_present", infer("optional_one", {
        "inputs": [tensor(f"IN{i}", "FP32", [1, 2], [i, 2]) for i in (0, 1)],
    })),
    case("json/optional_only", infer("optional_one", {"inputs": [tensor("IN1", "FP32", [1, 2], [1, 2])]})),
    case("json/optional_none", infer("optional_one", {"inputs": []})),
    case("json/reshape", infer("reshaped", {"inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4])]})),
    case("json/reshape_given_inner", infer("reshaped", {"inputs": [tensor("IN", "FP32", [2, 2], [1, 2, 3, 4])]})),
    case("json/reshape_scalar", infer("reshaped_scalar", {"inputs": [tensor("IN", "FP32", [3, 1], [1, 2, 3])]})),
    case("json/reshape_unknown", infer("reshaped_unknown", {"inputs": [tensor("IN", "FP32", [3, 4], list(range(12)))]})),
    case("json/self_described", infer("self_described", {"inputs": [tensor("IN", "FP32", [1, 3], [1, 2, 3])]})),
    case("json/empty_tensor", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [0], [])]})),
    case("json/empty_tensor_nested", infer("echo_fp32", _fp32("[[]]", "[0]"))),
    case("json/empty_strings", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [0], [])]})),
    case("json/empty_batch", infer("echo_fp32_batch", {"inputs": [tensor("IN", "FP32", [0, 4], [])]})),
    case("json/nested_as_shape", infer("add_sub", {
        "inputs": [tensor("INPUT0", "FP32", [2, 16], [_ROW, _ROW]), tensor("INPUT1", "FP32", [2, 16], [_ROW, _ROW])],
    })),
    case("json/nested_not_as_shape", infer("echo_fp32", _fp32("[[1],[2,[3]],4]"))),
    case("json/nested_deep", infer("echo_fp32", _fp32(_nested(60)))),
    case("json/nested_99", infer("echo_fp32", _fp32(_nested(99)))),
    case("json/nested_100", infer("echo_fp32", _fp32(_nested(100)))),
    case("json/nested_101", infer("echo_fp32", _fp32(_nested(101)))),
    case("json/nested_1000", infer("echo_fp32", _fp32(_nested(1000)))),
    case("json/data_scalar", infer("echo_fp32", _fp32("5", "[1]"))),
    case("json/data_string", infer("echo_fp32", _fp32('"1"', "[1]"))),
    case("json/data_object", infer("echo_fp32", _fp32('{"a":1}', "[1]"))),
    case("json/data_null", infer("echo_fp32", _fp32("null", "[1]"))),
    case("json/data_true", infer("echo_fp32", _fp32("[true,2,3,4]"))),
    case("json/data_null_element", infer("echo_fp32", _fp32("[1,null,3,4]"))),
    case("json/data_string_element", infer("echo_fp32", _fp32('[1,"2",3,4]'))),
    case("json/data_object_element", infer("echo_fp32", _fp32("[1,{},3,4]"))),
    case("json/data_too_many", infer("echo_fp32", _fp32("[1,2,3,4,5]"))),
    case("json/data_too_few", infer("echo_fp32", _fp32("[1,2,3]"))),
    case("json/data_empty", infer("echo_fp32", _fp32("[]"))),
    case("json/data_extra_empty_arrays", infer("echo_fp32", _fp32("[[],1,[],2,3,4,[]]"))),
    case("json/strings_too_many", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [1], ["a", "b"])]})),
    case("json/strings_too_few", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [3], ["a", "b"])]})),
    case("json/strings_number", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [1], [5])]})),
    case("json/strings_nested", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [2], [["a"], ["b"]])]})),
    case("json/strings_long", infer("echo_strings", {"inputs": [tensor("IN", "BYTES", [1], ["x" * 70000])]})),
    case("json/strings_escapes", infer("echo_strings", (
        '{"inputs":[{"name":"IN","datatype":"BYTES","shape":[3],"data":["\\u0041\\/\\b\\f\\n\\r\\t","\\ud83d\\ude00","\\u0000x"]}]}'
    ))),
    case("json/strings_lone_surrogate", infer("echo_strings", (
        '{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\\ud83d"]}]}'
    ))),
    case("json/strings_raw_not_utf8", infer("echo_strings", (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\xff\xfe"]}]}'
    ))),
    case("json/strings_raw_control", infer("echo_strings", (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["a\x01b"]}]}'
    ))),
    case("json/strings_raw_newline", infer("echo_strings", (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["a\nb"]}]}'
    ))),
    case("json/bool_number", infer("identity_all", _one("BOOL", [1]))),
    case("json/bool_string", infer("identity_all", _one("BOOL", ["true"]))),
    case("json/uint8_overflow", infer("identity_all", _one("UINT8", [300])), note="narrowing truncates silently"),
    case("json/uint8_negative", infer("identity_all", _one("UINT8", [-1]))),
    case("json/uint8_float", infer("identity_all", _one("UINT8", [1.0]))),
    case("json/int8_overflow", infer("identity_all", _one("INT8", [200, -300]))),
    case("json/int32_overflow", infer("identity_all", _one("INT32", [4294967297]))),
    case("json/int32_float", infer("identity_all", _one("INT32", [1.5]))),
    case("json/int32_exponent", infer("identity_all", _one("INT32", [1e3]))),
    case("json/int64_overflow", infer("identity_all", _one("INT64", [9223372036854775808]))),
    case("json/uint64_overflow", infer("identity_all", _one("UINT64", [18446744073709551616]))),
    case("json/uint64_negative", infer("identity_all", _one("UINT64", [-1]))),
    case("json/int16_bool", infer("identity_all", _one("INT16", [True]))),
    case("json/fp32_large", infer("echo_fp32", _fp32("[1e39,-1e39,1e-50,0]"))),
    case("json/fp32_nan", infer("echo_fp32", _fp32("[NaN,1,2,3]"))),
    case("json/fp32_infinity", infer("echo_fp32", _fp32("[Infinity,-Infinity,Inf,-Inf]"))),
    case("json/fp32_minus_nan", infer("echo_fp32", _fp32("[-NaN,1,2,3]"))),
    case("json/fp32_negative_zero", infer("echo_fp32", _fp32("[-0,-0.0,0,0e5]"))),
    case("json/fp32_integers", infer("echo_fp32", _fp32("[123456789,9007199254740993,18446744073709551615,99999999999999999999]"))),
    case("json/fp32_shortest", infer("echo_fp32", _fp32("[0.1,0.3333333333,100000,1e21]"))),
    case("json/fp32_sizes", infer("echo_fp32", _fp32("[1e20,123456.789,0.0001,0.000001]"))),
    case("json/fp64_too_large", infer("identity_all", (
        '{"inputs":[{"name":"IN_FP64","datatype":"FP64","shape":[1],"data":[1e400]}],"outputs":[{"name":"OUT_FP64"}]}'
    ))),
    case("json/many_elements", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [20000], list(range(20000)))]})),
    case("json/key_twice", infer("echo_fp32", (
        '{"inputs":[{"name":"IN","name":"OTHER","datatype":"FP32","shape":[1],"data":[1]}]}'
    ))),
    case("json/inputs_twice", infer("echo_fp32", (
        '{"inputs":[],"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1]}]}'
    ))),
    case("json/sequence_model", infer("sequence", {
        "inputs": [tensor("IN", "INT32", [1, 1], [5])],
        "parameters": {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
    })),
    case("json/decoupled", infer("decoupled", {"inputs": [tensor("IN", "FP32", [1], [1])]})),
    case("json/decoupled_bad_body", infer("decoupled", "{")),
    case("json/unknown_model", infer("nosuch", {"inputs": []})),
    case("json/unknown_model_bad_body", infer("nosuch", "{")),
    case("json/unknown_version", post("/v2/models/add_sub/versions/7/infer", "{}")),
)  # fmt: skip
