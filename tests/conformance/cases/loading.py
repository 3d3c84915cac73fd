"""Models that do not load: the index entry after startup, and the answer to loading them again."""

# ruff: noqa: E501 - a case reads best on one line

import base64
import json

from ..broken_models import BROKEN, FILELESS, GOOD
from ..messages import unary
from ..repository import SOURCES
from ..request import DEFAULT_TIMEOUT_S, Case, Exchange, Rpc, case, evaluate, get, infer, post, send

# How long to wait for a load that real Triton never finishes.
STUCK_WAIT_S = 3.0
_INDEX = post("/v2/repository/index")


def _load(model: str, body: object = None, timeout: float = DEFAULT_TIMEOUT_S) -> Exchange:
    return send("POST", f"/v2/repository/models/{model}/load", "" if body is None else json.dumps(body), None, timeout)


def _unload(model: str, body: str = "") -> Exchange:
    return post(f"/v2/repository/models/{model}/unload", body)


def _override(model: str, value: object, **files: str) -> Exchange:
    text = value if isinstance(value, str) else json.dumps(value)
    return _load(model, {"parameters": {"config": text, **files}})


_GOOD = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
}
_READY = get("/v2/models/good/ready")
_INPUT = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[4]}]}'
_RUN = infer("good", _INPUT)
_MODEL = base64.b64encode((SOURCES / "identity.py").read_bytes()).decode()


def _rpc(action: str, model: str, **parameters: object) -> Rpc:
    return unary(f"RepositoryModel{action}", {"model_name": model, "parameters": parameters})


# What a model asks of the server; real Triton dies when a load that a model asked for fails.
_BY_MODELS = {
    "ready_before": "pb_utils.is_model_ready('add_sub')",
    "load": "(pb_utils.load_model('add_sub'), pb_utils.is_model_ready('add_sub'), bls().exec().has_error())",
    "load_keyword": "pb_utils.load_model(model_name='constant', config='', files=None)",
    "load_no_files": "pb_utils.load_model('constant', '', {})",
    "load_again": "pb_utils.load_model('add_sub')",
    "unload": "(pb_utils.unload_model('add_sub'), pb_utils.is_model_ready('add_sub'))",
    "ready_after": "pb_utils.is_model_ready('add_sub', '1')",
    "unload_again": "pb_utils.unload_model('add_sub')",
    "unload_unknown": "pb_utils.unload_model('nosuch')",
    "unload_dependents": "pb_utils.unload_model('constant', unload_dependents=True)",
    "load_override": "pb_utils.load_model('echo_fp32', " + repr(json.dumps(_GOOD)) + ")",
    "load_files": "pb_utils.load_model('made', " + repr(json.dumps(_GOOD))
    + ", {'file:1/model.py': b'class TritonPythonModel:\\n    def execute(self, requests):\\n        return []'})",
    "load_files_text": "pb_utils.load_model('made', " + repr(json.dumps(_GOOD))
    + ", {'file:1/model.py': 'class TritonPythonModel:\\n    def execute(self, requests):\\n        return []'})",
    "load_files_list": "pb_utils.load_model('made', '', ['file:1/model.py'])",
    "unload_made": "pb_utils.unload_model('made')",
    "thread": "__import__('concurrent.futures').futures.ThreadPoolExecutor(1).submit(pb_utils.load_model, 'constant').result()",
    "itself": "pb_utils.load_model('evaluate')",
}  # fmt: skip

CASES: tuple[Case, ...] = (
    *(case(f"broken/{model.name}", _INDEX, pick=model.name, server="broken") for model in BROKEN),
    *(case(f"reload/{model.name}", _load(model.name), _INDEX, pick=model.name, server="control") for model in BROKEN),
    *(case(f"startup/{model.name}", _INDEX, pick=model.name, server="broken") for model in GOOD),
    case("startup/broken_model_ready", get("/v2/models/code_initialize/ready"), server="broken"),
    case("startup/broken_model_metadata", get("/v2/models/code_initialize"), server="broken"),
    case("startup/broken_model_config", get("/v2/models/code_initialize/config"), server="broken"),
    case("startup/broken_model_infer", infer("code_initialize", '{"inputs":[]}'), server="broken"),
    case("startup/broken_model_version_ready", get("/v2/models/code_initialize/versions/1/ready"), server="broken"),
    case("startup/bad_config_ready", get("/v2/models/config_syntax/ready"), server="broken"),
    case("startup/bad_config_infer", infer("config_syntax", '{"inputs":[]}'), server="broken"),
    case("startup/half_broken_infer", infer("half_broken", '{"inputs":[]}'), server="broken"),
    case("startup/broken_model_stats", get("/v2/models/code_initialize/stats"), server="broken"),
    case("control/no_auto_complete", _load("self_described"), get("/v2/models/self_described/config"), server="strict"),
    case("control/never_loaded_index", _INDEX, pick="good", server="strict"),
    case("control/never_loaded_ready", get("/v2/models/good/ready"), server="strict"),
    case("control/load_first", _load("good"), _READY, _RUN, _INDEX, pick="good", server="strict"),
    case("control/load_again", _load("good"), _READY, _RUN, server="control"),
    case("control/load_unknown", _load("nosuch"), server="control"),
    case("control/load_versions", _load("good_versions"), _INDEX, pick="good_versions", server="control"),
    case("control/load_empty_object", _load("good", {}), server="control"),
    case("control/load_bad_json", post("/v2/repository/models/good/load", "{"), server="control"),
    case("control/load_parameters_array", _load("good", {"parameters": []}), server="control"),
    case("control/load_unknown_parameter", _load("good", {"parameters": {"nosuch": "1"}}), server="control"),
    case("control/load_number_parameter", _load("good", {"parameters": {"config": 5}}), server="control"),
    case("control/load_get", get("/v2/repository/models/good/load"), server="control"),
    case("control/load_named_repository", post("/v2/repository/r/models/good/load"), server="control"),
    case("control/unload_named_repository", post("/v2/repository/r/models/good/unload"), server="control"),
    case("control/override", _override("good", {**_GOOD, "max_batch_size": 3}), get("/v2/models/good/config"), _load("good"),
         get("/v2/models/good/config"), server="control"),
    case("control/override_bad_json", _override("good", "{"), _READY, server="control"),
    case("control/override_bad_value", _override("good", {**_GOOD, "max_batch_size": -1}), _READY, _RUN, server="control"),
    case("control/override_unknown_field", _override("good", {**_GOOD, "nosuch": 1}), _READY, server="control"),
    case("control/override_other_name", _override("good", {**_GOOD, "name": "other"}), _READY, server="control"),
    case("control/files_without_config", _load("made", {"parameters": {"file:1/model.py": "eA=="}}), server="control"),
    case("control/files_not_base64", _load("made", {"parameters": {
        "config": json.dumps(_GOOD), "file:1/model.py": "!!",
    }}), server="control"),
    case("control/unload", _unload("good_zero"), server="control"),
    case("control/unload_again", _unload("good_zero"), server="control"),
    case("control/unload_unknown", _unload("nosuch"), server="control"),
    case("control/unload_bad_json", _unload("good", "{"), server="control"),
    case("control/unload_dependents", _unload("good", '{"parameters":{"unload_dependents":true}}'), server="control"),
    case("control/unload_dependents_text", _unload("good", '{"parameters":{"unload_dependents":"x"}}'), server="control"),
    case("control/load_after_unload", _load("good"), _READY, _RUN, _INDEX, pick="good", server="control"),
    case("control/unloaded", _unload("good_names"), get("/v2/models/good_names/ready"), get("/v2/models/good_names"),
         get("/v2/models/good_names/config"), get("/v2/models/good_names/stats"), infer("good_names", "{}"),
         get("/v2/models/good_names/versions/1/config"), post("/v2/models/good_names/versions/1/infer", "{}"), server="control"),
    case("control/override_versions", _override("good_versions", {
        "backend": "python", "output": [{"name": "VALUE", "data_type": "TYPE_INT32", "dims": [1]}],
        "version_policy": {"specific": {"versions": ["1"]}},
    }), get("/v2/models/good_versions"), get("/v2/models/good_versions/versions/2"), _load("good_versions"),
         get("/v2/models/good_versions"), server="control"),
    case("control/failed_keeps_serving", _load("good"), _override("good", {**_GOOD, "output": [{"name": "OUT"}]}),
         _READY, _RUN, server="control"),
    case("control/files", _override("made", _GOOD, **{"file:1/model.py": _MODEL}), get("/v2/models/made"),
         infer("made", _INPUT), _load("made"), infer("made", _INPUT), _unload("made"), get("/v2/models/made/versions/1"),
         server="control"),
    case("control/files_of_new_version", _override("made_version", _GOOD, **{"file:7/model.py": _MODEL}),
         infer("made_version", _INPUT), server="control"),
    case("control/files_without_version", _override("made", _GOOD, **{"file:model.py": _MODEL}), server="control"),
    case("control/files_outside", _override("made", _GOOD, **{"file:../model.py": _MODEL}), server="control"),
    case("control/files_leading_slash", _override("slashed", _GOOD, **{"file:/1/model.py": _MODEL}),
         infer("slashed", _INPUT), _unload("slashed"), server="control"),
    case("control/files_leading_slashes", _override("slashed", _GOOD, **{"file://1//model.py": _MODEL}),
         infer("slashed", _INPUT), _unload("slashed"), server="control"),
    case("control/files_slash_outside", _override("made", _GOOD, **{"file:/../model.py": _MODEL}), server="control"),
    case("control/override_bare_group", _override("good", {**_GOOD, "instance_group": {"count": 2, "kind": "KIND_CPU"}}),
         get("/v2/models/good/config"), _load("good"), server="control"),
    case("control/override_bare_input", _override("good", {**_GOOD, "input": {"name": "IN", "data_type": "TYPE_FP32", "dims": 1}}),
         get("/v2/models/good/config"), _load("good"), server="control"),
    case("control/files_number", post("/v2/repository/models/made/load", '{"parameters":{"file:1/model.py":5}}'),
         server="control"),
    case("control/traversal", _load("%2e%2e"), server="control"),
    case("control/three_dots", _load("..."), server="control"),
    case("control/grpc_load", _rpc("Load", "good"), unary("ModelReady", {"name": "good"}), server="control"),
    case("control/grpc_load_broken", _rpc("Load", "code_initialize"), server="control"),
    case("control/grpc_load_unknown", _rpc("Load", "nosuch"), server="control"),
    case("control/grpc_override", _rpc("Load", "good", config={"string_param": json.dumps({**_GOOD, "max_batch_size": 2})}),
         unary("ModelConfig", {"name": "good"}), server="control"),
    case("control/grpc_files", _rpc("Load", "made_by_grpc", config={"string_param": json.dumps(_GOOD)}, **{
        "file:1/model.py": {"bytes_param": _MODEL},
    }), unary("ModelMetadata", {"name": "made_by_grpc"}), server="control"),
    case("control/grpc_files_text", _rpc("Load", "made", **{"file:1/model.py": {"string_param": "x"}}), server="control"),
    case("control/grpc_unload", _rpc("Unload", "good_versions"), unary("ModelMetadata", {"name": "good_versions"}),
         unary("ModelMetadata", {"name": "good_versions", "version": "1"}), _rpc("Load", "good_versions"), server="control"),
    case("control/grpc_unload_unknown", _rpc("Unload", "nosuch"), server="control"),
    case("control/grpc_unload_dependents", _rpc("Unload", "good_versions", unload_dependents={"bool_param": True}),
         _rpc("Load", "good_versions"), server="control"),
    case("control/ready_index", post("/v2/repository/index", '{"ready":true}'), pick="good_versions", server="control"),
    *(case(f"control/by_model_{name}", evaluate(call), server="control_calls") for name, call in _BY_MODELS.items()),
    # Last on their server, because real Triton never answers and keeps the model's lock.
    *(
        case(f"reload/{model.name}", _load(model.name, timeout=STUCK_WAIT_S), _INDEX, pick=model.name, server="strict")
        for model in FILELESS
    ),
)  # fmt: skip
