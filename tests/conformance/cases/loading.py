"""Models that do not load: the index entry after startup, and the answer to loading them again."""

# ruff: noqa: E501 - a case reads best on one line

import json

from ..broken_models import BROKEN, FILELESS, GOOD
from ..request import DEFAULT_TIMEOUT_S, Case, Exchange, case, get, infer, post, send

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
_RUN = infer("good", '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[4]}]}')

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
    case("control/ready_index", post("/v2/repository/index", '{"ready":true}'), pick="good_versions", server="control"),
    # Last on their server, because real Triton never answers and keeps the model's lock.
    *(
        case(f"reload/{model.name}", _load(model.name, timeout=STUCK_WAIT_S), _INDEX, pick=model.name, server="strict")
        for model in FILELESS
    ),
)  # fmt: skip
