"""`generate` and `generate_stream`: which member becomes what, how inputs get their shapes, events and errors."""

import json

from ..request import Case, Exchange, case, get, post


def _generate(model: str, body: object, stream: bool = False, **headers: str) -> Exchange:
    text = body if isinstance(body, str) else json.dumps(body)
    path = f"/v2/models/{model}/generate{'_stream' if stream else ''}"
    return post(path, text, {name.replace("_", "-"): value for name, value in headers.items()})


_STREAMS = {"none": 0, "one": 1, "three": 3, "error": -1, "error_then_two": -2, "exception": -9}

_MEMBERS: dict[str, object] = {
    "scalar": {"IN": 3, "id": "x1"},
    "list": {"IN": [1]},
    "nested_list": {"IN": [[1]]},
    "two_elements": {"IN": [1, 2]},
    "no_elements": {"IN": []},
    "inside_parameters": {"parameters": {"IN": 1, "a": 5}},
    "input_twice": {"IN": 1, "parameters": {"IN": 2}},
    "input_repeated": '{"IN":[1],"IN":[2]}',
    "input_repeated_inside": '{"parameters":{"IN":1,"IN":1}}',
    "parameter_repeated": '{"IN":1,"a":1,"a":1}',
    "parameters_number": {"IN": 1, "parameters": 3},
    "parameters_in_parameters": {"IN": 1, "parameters": {"parameters": {}}},
    "parameter_kinds": {"IN": 1, "a": 1, "b": True, "c": "x", "d": 1.5, "e": -4},
    "parameter_list": {"IN": 1, "a": [1]},
    "parameter_object": {"IN": 1, "a": {}},
    "parameter_null": {"IN": 1, "a": None},
    "input_text": {"IN": "x"},
    "input_fraction": {"IN": 1.5},
    "input_null": {"IN": None},
    "input_object": {"IN": {"a": 1}},
    "id_number": {"IN": 1, "id": 5},
    "output_name": {"IN": 1, "OUT": 3},
    "reserved_names": {"IN": 1, "sequence_id": 5, "priority": 1, "timeout": 1, "triton_x": 1},
    "empty_object": {},
    "empty": "",
    "array": [],
    "cut": "{",
}

CASES: tuple[Case, ...] = (
    *(case(f"generate/one_{name}", _generate("stream", {"IN": number})) for name, number in _STREAMS.items()),
    *(
        case(f"generate/stream_{name}", _generate("stream", {"IN": number, "id": "q"}, stream=True))
        for name, number in _STREAMS.items()
    ),
    *(case(f"generate/{name}", _generate("stream", body)) for name, body in _MEMBERS.items()),
    case("generate/one_of_pair", _generate("add_sub", {"INPUT0": [1] * 16, "INPUT1": [0.5] * 16})),
    case("generate/pair_streamed", _generate("add_sub", {"INPUT0": [1] * 16, "INPUT1": [0.5] * 16}, stream=True)),
    case("generate/pair_too_long", _generate("add_sub", {"INPUT0": [1] * 17, "INPUT1": [0.5] * 16})),
    case("generate/text", _generate("behave", {"COMMAND": "unicode"})),
    case("generate/texts", _generate("behave", {"COMMAND": "numbers_as_objects"})),
    case("generate/two_outputs", _generate("behave", {"COMMAND": "both_reversed"})),
    case("generate/specials", _generate("behave", {"COMMAND": "specials"})),
    case("generate/model_error", _generate("behave", {"COMMAND": "code_UNAVAILABLE"}, stream=True)),
    case("generate/unknown_model", _generate("nosuch", {"IN": 1})),
    case("generate/unknown_version", post("/v2/models/stream/versions/9/generate", '{"IN":1}')),
    case("generate/version", post("/v2/models/stream/versions/1/generate", '{"IN":1}')),
    case("generate/get", get("/v2/models/stream/generate")),
    case("generate/gzip", _generate("stream", {"IN": 1}, content_encoding="gzip")),
    case("generate/identity", _generate("stream", {"IN": 1}, content_encoding="identity")),
)
