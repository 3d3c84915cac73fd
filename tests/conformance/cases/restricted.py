"""APIs that want a header, or a key of the metadata: which they are, and what comes before what.

Health is open: both servers are asked for it until they are ready.
"""

import json

from ..messages import infer, stream, tensor, unary
from ..request import Case, Exchange, case, get, post, send

_BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}]})
_INFER = "/v2/models/echo_fp32/infer"

_ROUTES: dict[str, tuple[str, str, str]] = {
    "ready": ("GET", "/v2/health/ready", ""),
    "model_ready": ("GET", "/v2/models/echo_fp32/ready", ""),
    "server": ("GET", "/v2", ""),
    "metadata": ("GET", "/v2/models/echo_fp32", ""),
    "metadata_unknown_model": ("GET", "/v2/models/nosuch", ""),
    "config": ("GET", "/v2/models/echo_fp32/config", ""),
    "statistics": ("GET", "/v2/models/stats", ""),
    "model_statistics": ("GET", "/v2/models/nosuch/stats", ""),
    "index": ("POST", "/v2/repository/index", ""),
    "index_of_repository": ("POST", "/v2/repository/some/index", ""),
    "load": ("POST", "/v2/repository/models/echo_fp32/load", ""),
    "unload": ("POST", "/v2/repository/models/echo_fp32/unload", ""),
    "logging": ("GET", "/v2/logging", ""),
    "update_logging": ("POST", "/v2/logging", "{}"),
    "infer": ("POST", _INFER, _BODY),
    "infer_unknown_model": ("POST", "/v2/models/nosuch/infer", _BODY),
    "infer_bad_json": ("POST", _INFER, "{"),
    "infer_get": ("GET", _INFER, ""),
    "infer_large": ("POST", _INFER, " " * 200_000),
    "generate": ("POST", "/v2/models/echo_fp32/generate", '{"IN":1}'),
    "generate_stream": ("POST", "/v2/models/echo_fp32/generate_stream", '{"IN":1}'),
    "generate_get": ("GET", "/v2/models/echo_fp32/generate", ""),
    "index_get": ("GET", "/v2/repository/index", ""),
    "server_post": ("POST", "/v2", "{}"),
    "unknown_route": ("GET", "/v2/nosuch", ""),
}
# What is the same in both but for the time, or is not offered here, is only asked for without the header.
_ANSWERED = ("metadata", "config", "index_of_repository", "infer", "infer_unknown_model", "infer_get", "generate_get",
             "index_get", "server_post", "infer_bad_json", "load", "logging")  # fmt: skip


def _ask(name: str, headers: dict[str, str] | None = None) -> Exchange:
    method, path, body = _ROUTES[name]
    return send(method, path, body.encode() if body or method == "POST" else None, headers)


_RPCS = {
    "metadata": unary("ModelMetadata", {"name": "echo_fp32"}),
    "unknown_model": unary("ModelMetadata", {"name": "nosuch"}),
    "config": unary("ModelConfig", {"name": "echo_fp32"}),
    "statistics": unary("ModelStatistics"),
    "index": unary("RepositoryIndex"),
    "load": unary("RepositoryModelLoad", {"model_name": "echo_fp32"}),
    "logging": unary("LogSettings"),
    "infer": infer("echo_fp32", tensor("IN", "FP32", [1, 1], {"fp32_contents": [1.5]})),
}

CASES: tuple[Case, ...] = (
    *(case(f"restricted/{name}", _ask(name), server="restricted") for name in _ROUTES),
    *(case(f"restricted/{name}_answered", _ask(name, {"x-key": "sesame"}), server="restricted") for name in _ANSWERED),
    *(
        case(f"restricted/value_{name}", _ask("metadata", headers), _ask("infer", headers), server="restricted")
        for name, headers in {
            "wrong": {"X-Key": "simsim"},
            "upper_case": {"X-Key": "SESAME"},
            "shorter": {"X-Key": "sesam"},
            "longer": {"X-Key": "sesamee"},
            "empty": {"X-Key": ""},
            "other_header": {"X-Keys": "sesame"},
        }.items()
    ),
    case(
        "restricted/on_one_connection",
        _ask("infer", {"X-Key": "sesame"}),
        _ask("infer"),
        get("/v2/health/live"),
        post(_INFER, _BODY, {"X-Key": "no"}),
        server="restricted",
    ),
    *(case(f"restricted/rpc_{name}", rpc, server="restricted") for name, rpc in _RPCS.items()),
    case("restricted/rpc_stream", stream(b""), server="restricted"),
    case("restricted/rpc_live", unary("ServerLive"), server="restricted"),
    *(
        case(
            f"restricted/rpc_key_{name}", unary("ModelConfig", {"name": "nosuch"}, metadata=metadata),
            server="restricted",
        )
        for name, metadata in {
            "right": (("triton-grpc-protocol-key", "sesame"),),
            "wrong": (("triton-grpc-protocol-key", "simsim"),),
            "without_prefix": (("key", "sesame"),),
        }.items()
    ),
)  # fmt: skip
