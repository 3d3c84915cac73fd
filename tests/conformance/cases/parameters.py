"""Request parameters: what is reserved, what reaches the model, and what is refused."""

from ..request import Case, Exchange, case, infer, tensor


def _seen(parameters: object, **more: object) -> Exchange:
    """A request for the model that tells what it sees, asking for that output only."""
    return infer("inspect", {"inputs": [], "parameters": parameters, "outputs": [{"name": "SEEN"}], **more})


def _text(parameters: str) -> Exchange:
    return infer("inspect", '{"inputs":[],"outputs":[{"name":"SEEN"}],"parameters":' + parameters + "}")


CASES: tuple[Case, ...] = (
    case("parameters/none", infer("inspect", {"inputs": []})),
    case("parameters/empty", _seen({})),
    case("parameters/string", _seen({"key": "value"})),
    case("parameters/integer", _seen({"key": 12, "negative": -3, "big": 9223372036854775807})),
    case("parameters/bool", _seen({"yes": True, "no": False})),
    case("parameters/double", _seen({"half": 0.5, "large": 1e300})),
    case("parameters/uint64", _seen({"big": 18446744073709551615})),
    case("parameters/too_large", _text('{"big":99999999999999999999}')),
    case("parameters/exponent", _text('{"key":1e3}')),
    case("parameters/null", _seen({"key": None})),
    case("parameters/array", _seen({"key": [1]})),
    case("parameters/object", _seen({"key": {}})),
    case("parameters/many", _seen({f"key{i}": i for i in range(40)})),
    case("parameters/unicode", _seen({"schl\u00fcssel": 'gr\u00fcn "q" \\ \n'})),
    case("parameters/empty_key", _seen({"": "x"})),
    case("parameters/key_twice", _text('{"key":1,"key":2}')),
    case("parameters/triton_key", _seen({"triton_anything": 1})),
    case("parameters/triton_key_final", _seen({"triton_enable_empty_final_response": True})),
    case("parameters/headers_key", _seen({"headers": "x"})),
    case("parameters/not_object", _seen([1])),
    case("parameters/is_string", _seen("x")),
    case("parameters/is_null", _seen(None)),
    case("parameters/id", _seen({}, id="the id")),
    case("parameters/id_number", _seen({}, id=5)),
    case("parameters/id_null", _seen({}, id=None)),
    case("parameters/sequence_id", _seen({"sequence_id": 42})),
    case("parameters/sequence_id_large", _seen({"sequence_id": 18446744073709551615})),
    case("parameters/sequence_id_string", _seen({"sequence_id": "a sequence"})),
    case("parameters/sequence_id_negative", _seen({"sequence_id": -1})),
    case("parameters/sequence_id_bool", _seen({"sequence_id": True})),
    case("parameters/sequence_id_float", _seen({"sequence_id": 1.5})),
    case("parameters/sequence_flags", _seen({"sequence_id": 1, "sequence_start": True, "sequence_end": True})),
    case("parameters/sequence_start", _seen({"sequence_id": 1, "sequence_start": True, "sequence_end": False})),
    case("parameters/sequence_end_only", _seen({"sequence_end": True})),
    case("parameters/sequence_start_number", _seen({"sequence_start": 1})),
    case("parameters/sequence_end_text", _seen({"sequence_end": "true"})),
    case("parameters/priority", _seen({"priority": 3})),
    case("parameters/priority_negative", _seen({"priority": -1})),
    case("parameters/priority_text", _seen({"priority": "1"})),
    case("parameters/timeout", _seen({"timeout": 5000000})),
    case("parameters/timeout_zero", _seen({"timeout": 0})),
    case("parameters/timeout_negative", _seen({"timeout": -1})),
    case("parameters/timeout_float", _seen({"timeout": 1.5})),
    case("parameters/binary_output_is_reserved", _seen({"binary_data_output": False, "other": 1})),
    case("parameters/sequence_start_without_model", _seen({"sequence_start": True})),
    case("parameters/sequence_no_id", infer("sequence", {"inputs": [tensor("IN", "INT32", [1, 1], [1])]})),
    case("parameters/sequence_not_started", infer("sequence", {
        "inputs": [tensor("IN", "INT32", [1, 1], [1])], "parameters": {"sequence_id": 99},
    })),
    case("parameters/sequence_string_id", infer("sequence", {
        "inputs": [tensor("IN", "INT32", [1, 1], [1])], "parameters": {"sequence_id": "x", "sequence_start": True},
    })),
    case("parameters/sequence_batch", infer("sequence", {
        "inputs": [tensor("IN", "INT32", [2, 1], [1, 2])], "parameters": {"sequence_id": 5, "sequence_start": True},
    })),
    case("parameters/inputs_seen", infer("inspect", {"inputs": [
        tensor("IN", "FP32", [2], [1, 2]), tensor("WORD", "BYTES", [1], ["x"]),
    ]})),
    case("parameters/requested_one", infer("inspect", {"inputs": [], "outputs": [{"name": "SEEN"}]})),
    case("parameters/input_parameters", infer("inspect", {
        "inputs": [tensor("IN", "FP32", [1], [1], extra="x", number=1)],
    })),
    case("parameters/input_parameters_array", infer("inspect", {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1], "parameters": [1]}],
    })),
    case("parameters/output_parameters_extra", infer("inspect", {
        "inputs": [], "outputs": [{"name": "OTHER", "parameters": {"extra": 1}}],
    })),
    case("parameters/output_parameters_array", infer("inspect", {
        "inputs": [], "outputs": [{"name": "OTHER", "parameters": []}],
    })),
    case("parameters/header_not_forwarded", infer("inspect", {"inputs": []}, headers={"X-Forward": "1"})),
)  # fmt: skip
