"""Several repositories: models of the same name with namespaces and without; loads of what has not changed."""

from __future__ import annotations

from ..messages import unary
from ..request import Case, Exchange, case, get, infer, post

_INPUT = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[4]}]}'
_INDEX = post("/v2/repository/index")


def _load(model: str) -> Exchange:
    return post(f"/v2/repository/models/{model}/load", "")


def _unload(model: str) -> Exchange:
    return post(f"/v2/repository/models/{model}/unload", "")


CASES: tuple[Case, ...] = (
    *(
        case(f"namespaces/{name}_{model}", step, server="namespaces")
        for model in ("both", "single", "nosuch")
        for name, step in (
            ("metadata", get(f"/v2/models/{model}")),
            ("version_metadata", get(f"/v2/models/{model}/versions/1")),
            ("config", get(f"/v2/models/{model}/config")),
            ("infer", infer(model, _INPUT)),
            ("grpc_metadata", unary("ModelMetadata", {"name": model})),
            ("grpc_config", unary("ModelConfig", {"name": model})),
        )
    ),
    case("namespaces/index", _INDEX, pick="single", server="namespaces"),
    case("namespaces/server_ready", get("/v2/health/ready"), server="namespaces"),
    case("namespaces/load_both", _load("both"), infer("both", _INPUT), server="namespaces"),
    case("namespaces/load_unknown", _load("nosuch"), server="namespaces"),
    case("duplicates/index", _INDEX, pick="both", server="duplicates"),
    case("duplicates/infer", infer("both", _INPUT), infer("single", _INPUT), server="duplicates"),
    # What Triton's stub writes beside the model counts as a change, so the first loads may be reloads there.
    case(
        "duplicates/load_unchanged",
        _load("single"),
        _load("single"),
        infer("single", _INPUT),
        _load("single"),
        infer("single", _INPUT),
        stats="single",
        server="unchanged",
    ),
    case("duplicates/load_both", _load("both"), server="unchanged"),
    case("duplicates/unload_dependents", post(
        "/v2/repository/models/single/unload", '{"parameters":{"unload_dependents":true}}'
    ), server="unchanged"),
)  # fmt: skip
