"""Well-formed requests that do not fit the model: one check of the core after the other."""

from ..request import Case, Exchange, case, infer, tensor

_ROW = [0] * 16
_A = tensor("INPUT0", "FP32", [1, 16], _ROW)
_B = tensor("INPUT1", "FP32", [1, 16], _ROW)


def _pair(*inputs: object, **more: object) -> Exchange:
    return infer("add_sub", {"inputs": list(inputs), **more})


def _one(model: str, kind: str, shape: list[int], data: list[object], **more: object) -> Exchange:
    return infer(model, {"inputs": [tensor("IN", kind, shape, data)], **more})


CASES: tuple[Case, ...] = (
    case("admission/one_missing", _pair(_A)),
    case("admission/other_missing", _pair(_B)),
    case("admission/none_given", _pair()),
    case("admission/missing_with_id", _pair(_A, id="request 7")),
    case("admission/input_twice", _pair(_A, _A)),
    case("admission/input_twice_with_id", _pair(_A, _A, id="request 7")),
    case("admission/one_more", _pair(_A, _B, tensor("INPUT2", "FP32", [1, 16], _ROW))),
    case("admission/unknown_for_missing", _pair(_A, tensor("OTHER", "FP32", [1, 16], _ROW))),
    case("admission/unknown_only", infer("echo_fp32", {"inputs": [tensor("OTHER", "FP32", [1], [1])]})),
    case("admission/empty_name", infer("echo_fp32", {"inputs": [tensor("", "FP32", [1], [1])]})),
    case("admission/output_unknown", _pair(_A, _B, outputs=[{"name": "NOSUCH"}])),
    case("admission/output_unknown_with_id", _pair(_A, _B, outputs=[{"name": "NOSUCH"}], id="x")),
    case("admission/output_twice", _pair(_A, _B, outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}])),
    case("admission/output_is_input_name", _pair(_A, _B, outputs=[{"name": "INPUT0"}])),
    case("admission/output_empty_name", _pair(_A, _B, outputs=[{"name": ""}])),
    case("admission/unknown_output_and_missing_input", _pair(_A, outputs=[{"name": "NOSUCH"}])),
    case("admission/batch_too_large", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [9, 16], _ROW * 9) for i in (0, 1)],
    })),
    case("admission/batch_largest", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [8, 16], _ROW * 8) for i in (0, 1)],
    })),
    case("admission/batch_mismatch", _pair(_A, tensor("INPUT1", "FP32", [2, 16], _ROW * 2))),
    case("admission/batch_zero", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [0, 16], []) for i in (0, 1)],
    })),
    case("admission/no_batch_dimension", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [16], _ROW) for i in (0, 1)],
    })),
    case("admission/no_shape_dims", infer("echo_fp32_batch", {"inputs": [tensor("IN", "FP32", [], [1])]})),
    case("admission/no_shape_dims_unbatched", infer("echo_fp32", {"inputs": [tensor("IN", "FP32", [], [1])]})),
    case("admission/wrong_type", _pair(_A, tensor("INPUT1", "INT32", [1, 16], _ROW))),
    case("admission/wrong_type_with_id", _pair(_A, tensor("INPUT1", "INT32", [1, 16], _ROW), id="7")),
    case("admission/wrong_type_string", _pair(_A, tensor("INPUT1", "BYTES", [1, 16], ["x"] * 16))),
    case("admission/string_type_expected", _one("echo_strings", "FP32", [1], [1])),
    case("admission/unknown_type", _one("echo_fp32", "FLOAT", [1], [1])),
    case("admission/config_type_name", _one("echo_fp32", "TYPE_FP32", [1], [1])),
    case("admission/lower_case_type", _one("echo_fp32", "fp32", [1], [1])),
    case("admission/empty_type", _one("echo_fp32", "", [1], [1])),
    case("admission/string_type_name", _one("echo_strings", "STRING", [1], ["x"])),
    case("admission/wrong_shape", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [1, 17], [0] * 17) for i in (0, 1)],
    })),
    case("admission/wrong_rank", infer("add_sub", {
        "inputs": [tensor(f"INPUT{i}", "FP32", [1, 4, 4], _ROW) for i in (0, 1)],
    })),
    case("admission/wrong_shape_unbatched", _one("echo_int64_plane", "INT64", [2, 2], [1, 2, 3, 4])),
    case("admission/wrong_rank_unbatched", _one("echo_int64_plane", "INT64", [3], [1, 2, 3])),
    case("admission/wrong_shape_with_id", _one("echo_int64_plane", "INT64", [3], [1, 2, 3], id="7")),
    case("admission/wrong_shape_reshape", _one("reshaped", "FP32", [5], [1, 2, 3, 4, 5])),
    case("admission/negative_dim", _one("echo_fp32", "FP32", [-1], [1])),
    case("admission/zero_in_plane", _one("echo_int64_plane", "INT64", [0, 3], [])),
    case("admission/zero_fixed", _one("echo_int64_plane", "INT64", [1, 0], [])),
    case("admission/huge_shape", _one("echo_fp32", "FP32", [9223372036854775807], [1]), server="fragile"),
    case("admission/overflow_shape", _one("echo_two_unknown", "FP32", [4294967296, 4294967296], [1]), server="fragile"),
    case("admission/overflow_bytes", _one("echo_two_unknown", "FP32", [2147483648, 2147483648], [1]), server="fragile"),
    case("admission/large_shape", _one("echo_fp32", "FP32", [1000000000], [1]), server="fragile"),
    case("admission/optional_too_many", infer("optional_one", {"inputs": [
        tensor("IN0", "FP32", [1, 2], [1, 2]), tensor("IN1", "FP32", [1, 2], [1, 2]),
        tensor("IN2", "FP32", [1, 2], [1, 2]),
    ]})),
    case("admission/optional_unknown", infer("optional_one", {"inputs": [
        tensor("IN0", "FP32", [1, 2], [1, 2]), tensor("IN2", "FP32", [1, 2], [1, 2]),
    ]})),
    case("admission/optional_batch_mismatch", infer("optional_one", {"inputs": [
        tensor("IN0", "FP32", [1, 2], [1, 2]), tensor("IN1", "FP32", [2, 2], [1, 2, 3, 4]),
    ]})),
    case("admission/control_tensor_given", infer("sequence", {
        "inputs": [tensor("IN", "INT32", [1, 1], [1]), tensor("START", "INT32", [1, 1], [1])],
        "parameters": {"sequence_id": 3, "sequence_start": True},
    })),
    case("admission/failures_count_nothing", _pair(_A), stats="add_sub",
         note="a request refused at admission moves no statistics"),
)  # fmt: skip
