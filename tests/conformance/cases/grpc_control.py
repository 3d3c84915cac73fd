"""gRPC's methods about the server and its models, and calls that are none."""

from ..messages import HEALTH, SERVICE, STREAM, infer_request, unary
from ..request import Case, Rpc, case

_ADD_SUB = {"name": "add_sub"}
_NOSUCH = {"name": "nosuch"}
# Field 3 of no request below, two bytes long; then field 1 with a length that the message does not have.
_UNKNOWN_FIELD = b"\x1a\x02ab"
_CUT = b"\x0a\x09add"
_NOT_UTF8 = b"\x0a\x02\xff\xfe"

CASES: tuple[Case, ...] = (
    case("grpc/live", unary("ServerLive")),
    case("grpc/ready", unary("ServerReady")),
    case("grpc/live_unknown_field", unary("ServerLive", _UNKNOWN_FIELD)),
    case("grpc/live_malformed", unary("ServerLive", _CUT)),
    case("grpc/health", Rpc(HEALTH, (b"",))),
    case("grpc/health_service", Rpc(HEALTH, (b"\x0a\x1einference.GRPCInferenceService",))),
    case("grpc/health_unknown_service", Rpc(HEALTH, (b"\x0a\x06nosuch",))),
    case("grpc/health_malformed", Rpc(HEALTH, (_CUT,))),
    case("grpc/health_watch", Rpc("/grpc.health.v1.Health/Watch", (b"",), timeout=1.0)),
    case("grpc/metadata_server", unary("ServerMetadata")),
    case("grpc/unknown_method", Rpc(SERVICE + "NoSuch", (b"",))),
    case("grpc/unknown_service", Rpc("/inference.NoSuchService/ServerLive", (b"",))),
    case("grpc/no_slash", Rpc("/ServerLive", (b"",))),
    case("grpc/unary_as_stream_of_two", Rpc(SERVICE + "ServerLive", (b"", b""), stream=True)),
    case("grpc/unary_without_message", Rpc(SERVICE + "ServerLive", (), stream=True)),
    case("grpc/gzip_control", unary("ModelMetadata", _ADD_SUB, compression="gzip")),
    case("grpc/metadata_ignored", unary("ServerLive", metadata=(("x-some", "value"),))),
    case("grpc/model_ready", unary("ModelReady", _ADD_SUB)),
    case("grpc/model_ready_version", unary("ModelReady", {"name": "add_sub", "version": "1"})),
    case("grpc/model_ready_unknown", unary("ModelReady", _NOSUCH)),
    case("grpc/model_ready_unknown_version", unary("ModelReady", {"name": "add_sub", "version": "9"})),
    case("grpc/model_ready_version_text", unary("ModelReady", {"name": "add_sub", "version": "one"})),
    case("grpc/model_ready_version_huge", unary("ModelReady", {"name": "add_sub", "version": "99999999999999999999"})),
    case("grpc/model_ready_no_name", unary("ModelReady")),
    case("grpc/model_ready_malformed", unary("ModelReady", _CUT)),
    case("grpc/model_ready_not_utf8", unary("ModelReady", _NOT_UTF8)),
    case("grpc/model_metadata", unary("ModelMetadata", _ADD_SUB)),
    case("grpc/model_metadata_every_type", unary("ModelMetadata", {"name": "identity_batch"})),
    case("grpc/model_metadata_no_inputs", unary("ModelMetadata", {"name": "constant"})),
    case("grpc/model_metadata_versions", unary("ModelMetadata", {"name": "versions_all", "version": "2"})),
    case("grpc/model_metadata_sequence", unary("ModelMetadata", {"name": "sequence"})),
    case("grpc/model_metadata_unknown", unary("ModelMetadata", _NOSUCH)),
    case("grpc/model_metadata_unknown_version", unary("ModelMetadata", {"name": "add_sub", "version": "9"})),
    case("grpc/model_metadata_version_text", unary("ModelMetadata", {"name": "add_sub", "version": "one"})),
    case("grpc/model_config", unary("ModelConfig", _ADD_SUB)),
    case("grpc/model_config_rich", unary("ModelConfig", {"name": "rich_config"})),
    case("grpc/model_config_self_described", unary("ModelConfig", {"name": "self_described"})),
    case("grpc/model_config_bare", unary("ModelConfig", {"name": "bare_config"})),
    case("grpc/model_config_unknown", unary("ModelConfig", _NOSUCH)),
    case("grpc/model_config_unknown_version", unary("ModelConfig", {"name": "add_sub", "version": "9"})),
    case("grpc/statistics_fresh", unary("ModelStatistics", {"name": "versions_two", "version": "3"})),
    case("grpc/statistics_unknown", unary("ModelStatistics", _NOSUCH)),
    case("grpc/statistics_unknown_version", unary("ModelStatistics", {"name": "add_sub", "version": "9"})),
    case("grpc/statistics_version_text", unary("ModelStatistics", {"name": "add_sub", "version": "one"})),
    case("grpc/statistics_version_only", unary("ModelStatistics", {"version": "1"})),
    case("grpc/index", unary("RepositoryIndex"), pick="add_sub"),
    case("grpc/index_ready", unary("RepositoryIndex", {"ready": True}), pick="versions_two"),
    case("grpc/index_named_repository", unary("RepositoryIndex", {"repository_name": "some"})),
    case("grpc/index_broken_model", unary("RepositoryIndex"), pick="code_initialize", server="broken"),
    case("grpc/index_ready_broken_model", unary("RepositoryIndex", {"ready": True}), pick="code_initialize",
         server="broken"),
    case("grpc/broken_model_ready", unary("ModelReady", {"name": "code_initialize"}), server="broken"),
    case("grpc/broken_model_metadata", unary("ModelMetadata", {"name": "code_initialize"}), server="broken"),
    case("grpc/broken_model_config", unary("ModelConfig", {"name": "code_initialize"}), server="broken"),
    case("grpc/broken_model_infer", unary("ModelInfer", {"model_name": "code_initialize"}), server="broken"),
    case("grpc/broken_model_stream", Rpc(STREAM, (infer_request("code_initialize", id="q"),), True), server="broken"),
    case("grpc/load_refused", unary("RepositoryModelLoad", {"model_name": "add_sub"})),
    case("grpc/load_unknown_refused", unary("RepositoryModelLoad", {"model_name": "nosuch"})),
    case("grpc/load_named_repository", unary("RepositoryModelLoad", {"repository_name": "r", "model_name": "add_sub"})),
    case("grpc/load_config_not_text", unary("RepositoryModelLoad", {
        "model_name": "add_sub", "parameters": {"config": {"bool_param": True}},
    })),
    case("grpc/load_unknown_parameter", unary("RepositoryModelLoad", {
        "model_name": "add_sub", "parameters": {"nosuch": {"string_param": "x"}},
    })),
    case("grpc/unload_refused", unary("RepositoryModelUnload", {"model_name": "add_sub"})),
    case("grpc/unload_named_repository", unary("RepositoryModelUnload", {
        "repository_name": "r", "model_name": "add_sub",
    })),
    case("grpc/unload_dependents_text", unary("RepositoryModelUnload", {
        "model_name": "add_sub", "parameters": {"unload_dependents": {"string_param": "x"}},
    })),
    case("grpc/shared_memory_status", unary("SystemSharedMemoryStatus")),
    case("grpc/shared_memory_status_unknown", unary("SystemSharedMemoryStatus", {"name": "nosuch"})),
    case("grpc/shared_memory_unregister_unknown", unary("SystemSharedMemoryUnregister", {"name": "nosuch"})),
    case("grpc/shared_memory_unregister_all", unary("SystemSharedMemoryUnregister")),
    case("grpc/shared_memory_register_unknown_key", unary("SystemSharedMemoryRegister", {
        "name": "r", "key": "/no_such_region_anywhere", "byte_size": "64",
    })),
)  # fmt: skip
