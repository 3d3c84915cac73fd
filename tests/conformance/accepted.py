"""The table of accepted differences between stubserve and the real Triton 2.51 that the suite runs beside.

Every entry names its cases and says why they may differ; where a fixed answer is promised instead, ``status`` and
``text`` pin what stubserve's last response must carry. An entry whose case no longer differs is an error of its own
(unless real Triton's answer changes from run to run: ``sometimes``), so the table cannot outlive its reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cases import CASES
from .request import ERROR_CODES


@dataclass(frozen=True)
class Accepted:
    """Why cases may differ, and what stubserve promises in them instead (see the module)."""

    reason: str
    cases: tuple[str, ...]
    status: int | str | None = None
    text: str | None = None
    sometimes: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)

    def text_for(self, case: str) -> str | None:
        """The promised text of ``case``: its own in ``texts``, else the common one."""
        return self.texts.get(case, self.text)


def _starting(prefix: str) -> tuple[str, ...]:
    return tuple(case.name for case in CASES if case.name.startswith(prefix))


_CALLED_CODES = {
    f"calls/code_{name}": f"<__ErrorCode.{name}: {number}>, 'an error of the model'"
    for number, name in enumerate(ERROR_CODES)
    if name != "INTERNAL"
}

NEWER_TRITON = (
    Accepted(
        "Clients may register shared memory only where --allow-client-shm says so; in 2.51 they always may.",
        (
            "grpc/shared_memory_unregister_unknown",
            "grpc/shared_memory_unregister_all",
            "grpc/shared_memory_register_unknown_key",
        ),
        "UNIMPLEMENTED",
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    ),
    Accepted(
        "Keys without a name, and those of Triton's own regions, are refused before anything is opened.",
        ("shared_memory/register_empty_key", "shared_memory/register_reserved"),
    ),
    Accepted(
        "Triton 2.73 tells a model that calls an unknown model or version so; 2.51 only says it is not ready.",
        (
            "message/exec_unknown_model",
            "message/exec_unknown_version",
            "message/exec_iterator_error",
            "calls/async_unknown_model",
            "calls/async_gather_mixed",
            "calls/version_zero",
            "calls/empty_model",
        ),
        200,
        "Error when running inference: Request for unknown model: '",
    ),
    Accepted(
        "A model that calls another one gets the code of that one's error; 2.51 makes INTERNAL of every code.",
        ("message/exec_model_error",),
        200,
        "<__ErrorCode.NOT_FOUND: 2>, 'an error of the model'",
    ),
    Accepted(
        "As above, for every other code.",
        tuple(_CALLED_CODES),
        200,
        texts=_CALLED_CODES,
    ),
    Accepted(
        "Response iterators can be cancelled, and responses to a model have parameters; 2.51 has neither method.",
        ("message/exec_iterator_cancel", "message/exec_result_parameters", "message/exec_error_parameters"),
        200,
        texts={
            "message/exec_iterator_cancel": "(None, 1, None)",
            "message/exec_result_parameters": "'{}'",
            "message/exec_error_parameters": "''",
        },
    ),
    Accepted(
        "Triton 2.73 names the unknown model or version here; 2.51 only says it is not ready.",
        (
            "metadata/ready_unknown_model",
            "metadata/ready_unknown_version",
            "versions/latest_ready_of_unloaded",
            "versions/specific_ready_of_skipped",
            "control/never_loaded_ready",
        ),
        404,
        "Request for unknown model: ",
    ),
    Accepted(
        "As above, for models that failed to load.",
        ("startup/broken_model_ready", "startup/bad_config_ready"),
        404,
        "Request for unknown model: ",
    ),
    Accepted("As above, for a model that was unloaded.", ("control/unloaded",)),
    Accepted(
        "As above, for a version that failed to load.",
        ("startup/broken_model_version_ready",),
        503,
        "is not at ready state",
    ),
    Accepted(
        "Triton 2.73 wants a compute capability of 7.5 at least, 2.51 of 6.0, and both say so.",
        ("broken/config_gpu_id", "reload/config_gpu_id", "update/no_such_gpu"),
        200,
    ),
    Accepted(
        "Triton 2.73 hands a model the correlation ids of its clients as text; 2.51 pads them to 128 bytes, refuses "
        "what comes of that, and takes no longer ones.",
        (
            "sequences/id_long",
            "sequences/typed_string_short",
            "sequences/typed_string_unicode",
            "sequences/typed_string_long",
            "sequences/typed_string_digits",
            "sequences/typed_string_empty_slot",
            "sequences/oldest_typed_string",
            "sequences/stream_text",
        ),
    ),
    Accepted(
        "Triton 2.73 refuses a correlation id of another type than the model's control has; 2.51 gives the model "
        "whatever comes of its bytes.",
        (
            "parameters/sequence_string_id",
            "sequences/typed_string_given_number",
            "sequences/oldest_typed_string_given_number",
            "sequences/typed_uint64_given_text",
            "sequences/typed_int64_given_text",
            "sequences/typed_uint32_given_text",
            "sequences/typed_int32_given_text",
        ),
        400,
        "sequence batching control 'ID' data-type is '",
    ),
    Accepted(
        "Triton 2.73 refuses an output that is asked for twice; 2.51 answers with it once.",
        ("admission/output_twice",),
        400,
        " output 'OUTPUT0' already exists in request",
    ),
    Accepted(
        "As above, over gRPC.",
        ("grpc_infer/output_twice",),
        "INVALID_ARGUMENT",
        " output 'OUTPUT0' already exists in request",
    ),
    Accepted(
        "Triton 2.73 limits how deep `data` may be nested; 2.51 recurses as deep as it is told to.",
        ("json/nested_100", "json/nested_101", "json/nested_1000"),
        400,
        "JSON nesting depth exceeds maximum allowed limit (100)",
    ),
    Accepted(
        "Triton 2.73 refuses a header length that is no number; 2.51 reads it as 0 and so as a raw request.",
        ("binary/header_length_text", "binary/header_length_empty"),
        400,
        "Unable to parse Inference-Header-Content-Length, got: ",
    ),
    Accepted(
        "Triton 2.73 says that the number is out of range.",
        ("binary/header_length_huge",),
        400,
        "value is out of range",
    ),
    Accepted(
        "Triton 2.73 answers 400 with a text of its own for a `ready` that is no boolean.",
        ("index/ready_number", "index/ready_text", "index/ready_null"),
        400,
        "Invalid value for 'ready': expected a boolean",
    ),
    Accepted(
        "Triton 2.73 checks a shape before it believes it; 2.51 dies, or loses the stub, on some of these.",
        ("admission/overflow_shape", "malformed/shape_too_large", "malformed/shape_over_int64"),
        400,
        "invalid shape for input 'IN'",
        sometimes=True,
    ),
    Accepted(
        "As above, for shapes whose size in bytes cannot be counted.",
        ("admission/huge_shape", "admission/overflow_bytes"),
        400,
        "byte size overflow for input 'IN'",
        sometimes=True,
    ),
    Accepted(
        "Triton 2.73 has a limit on JSON tensors; 2.51 allocates the 4 GB first.",
        ("admission/large_shape",),
        400,
        "Use --http-max-input-size to increase the limit.",
        sometimes=True,
    ),
    Accepted(
        "In Triton 2.73 an empty Content-Encoding means none.",
        ("compression/empty_name",),
        200,
    ),
    Accepted(
        "In Triton 2.73 a response can carry parameters.",
        (
            "message/response_defaults",
            "message/response_error",
            "message/response_parameters",
            "message/response_parameters_list",
            "message/response_parameters_key",
            "message/response_parameters_value",
            "behaviour/parameters",
            "behaviour/parameters_empty",
        ),
        200,
    ),
    Accepted(
        "As above, over gRPC.",
        ("grpc_infer/model_parameters", "grpc_infer/model_parameters_empty", "grpc_stream/response_parameters"),
        "OK",
    ),
    Accepted("As above, for the class itself.", ("surface/dir_response",), 200, "'parameters'"),
    Accepted(
        "In Triton 2.73 a malformed string blob has an error text of its own; in 2.51 the text comes from `struct`.",
        ("tensor/deserialize_short_length", "tensor/deserialize_short_text"),
        200,
        "Invalid bytes tensor data: ",
    ),
    Accepted(
        "Triton 2.73 refuses a label file outside the model directory.",
        ("broken/label_outside", "reload/label_outside"),
    ),
)

# The code of the GOAWAY with which stubserve ends a connection, by case.
_SAID = {
    "http2/preface_http1": "PROTOCOL_ERROR",
    "http2/preface_garbage": "PROTOCOL_ERROR",
    "http2/frame_of_16_mib": "FRAME_SIZE_ERROR",
    "http2/settings_length": "FRAME_SIZE_ERROR",
    "http2/settings_ack_with_payload": "FRAME_SIZE_ERROR",
    "http2/settings_on_stream": "PROTOCOL_ERROR",
    "http2/ping_length": "FRAME_SIZE_ERROR",
    "http2/headers_padding_too_long": "PROTOCOL_ERROR",
    "http2/headers_not_ended": "PROTOCOL_ERROR",
    "http2/headers_without_end": "ENHANCE_YOUR_CALM",
    "http2/headers_no_hpack": "COMPRESSION_ERROR",
    "http2/headers_index_unknown": "COMPRESSION_ERROR",
    "http2/continuation_of_nothing": "PROTOCOL_ERROR",
    "http2/continuation_of_another": "PROTOCOL_ERROR",
    "http2/window_update_length": "FRAME_SIZE_ERROR",
    "http2/window_update_zero": "PROTOCOL_ERROR",
    "http2/rst_length": "FRAME_SIZE_ERROR",
}
_MINDED = {
    "http2/push_promise": "PROTOCOL_ERROR",
    "http2/headers_stream_0": "PROTOCOL_ERROR",
    "http2/headers_even_stream": "PROTOCOL_ERROR",
    "http2/data_padding_too_long": "PROTOCOL_ERROR",
    "http2/data_stream_0": "PROTOCOL_ERROR",
    "http2/data_idle_stream": "PROTOCOL_ERROR",
    "http2/ping_on_stream": "PROTOCOL_ERROR",
    "http2/rst_stream_0": "PROTOCOL_ERROR",
    "http2/rst_idle_stream": "PROTOCOL_ERROR",
    "http2/window_update_idle_stream": "PROTOCOL_ERROR",
    "http2/headers_lower_stream": "PROTOCOL_ERROR",
    "http2/window_overflow": "FLOW_CONTROL_ERROR",
}

HTTP2 = (
    Accepted(
        "Triton closes the connection without a word, or with a status for the open calls only; stubserve first says "
        "with a GOAWAY why.",
        tuple(_SAID),
        "GOAWAY",
        texts=_SAID,
    ),
    Accepted(
        "By the standard these end the connection; Triton goes on with it.",
        tuple(_MINDED),
        "GOAWAY",
        texts=_MINDED,
    ),
    Accepted(
        "By the standard these end one stream, which is reset with the reason while the others go on. Triton goes "
        "on with the stream as well, or ends the connection.",
        ("http2/data_after_the_end", "http2/window_update_zero_on_stream", "http2/window_overflow_on_stream"),
        "grpc-status",
        "0",
    ),
    Accepted(
        "A client that opens streams only to cancel them (CVE-2023-44487): Triton serves it for ever.",
        ("http2/rst_flood",),
        "GOAWAY",
        "ENHANCE_YOUR_CALM",
    ),
    Accepted(
        "Pings that come too often end the connection; Triton allows some, because it answers calls in between.",
        ("http2/ping_flood",),
        "GOAWAY",
        "ENHANCE_YOUR_CALM",
        sometimes=True,
    ),
    Accepted(
        "Triton still gives a status to calls that their client has cancelled.",
        ("http2/rst_100",),
        "grpc-status",
        "0",
    ),
    Accepted(
        "The standard allows padding and says to overlook flags that are not known; Triton ends the connection or the "
        "call.",
        ("http2/headers_padded", "http2/data_padded", "http2/unknown_flags"),
        "grpc-status",
        "0",
    ),
    Accepted(
        "stubserve does not insist on the client's settings.", ("http2/preface_without_settings",), "grpc-status", "0"
    ),
    Accepted(
        "The window of a stream limits bytes that stubserve has not taken yet; it has already taken these bytes.",
        ("http2/window_exceeded",),
        "grpc-status",
        "0",
    ),
    Accepted(
        "A request that is not a call of gRPC gets the HTTP status 415, as gRPC's documents say; Triton's client "
        "gets UNKNOWN or a reset stream.",
        ("http2/headers_empty", "http2/method_get", "http2/content_type_json"),
        "grpc-status",
        "0",
    ),
    Accepted(
        "A malformed timeout counts as no timeout; Triton resets the stream.",
        ("http2/timeout_malformed",),
        "grpc-status",
        "0",
    ),
    Accepted(
        "An encoding that the server does not know is UNIMPLEMENTED, as gRPC's documents say; Triton resets "
        "the stream.",
        ("http2/encoding_unknown",),
        "grpc-status",
        "0",
    ),
    Accepted(
        "A message whose first byte is neither 0 nor 1, or 1 where no encoding was named, is refused; Triton takes it.",
        ("http2/data_flag", "http2/compressed_without_encoding"),
        "grpc-status",
        "0",
    ),
)

# What real Triton writes into its log when it cannot use a model's configuration, by model.
POLL_FAILURES = {
    "config_syntax": "failed to read text proto from",
    "config_unknown_field": "failed to read text proto from",
    "config_wrong_value": "failed to read text proto from",
    "config_bad_enum": "failed to read text proto from",
    "config_unclosed": "failed to read text proto from",
    "config_other_name": "unexpected directory name 'config_other_name' for model 'another', "
    "directory name must equal model name",
    "config_negative_batch": "'max_batch_size' must be non-negative value for config_negative_batch",
    "config_no_versions": "at least one version must be available under the version policy of model "
    "'config_no_versions'",
    "config_version_missing": "at least one version must be available under the version policy of model "
    "'config_version_missing'",
    "config_pair": "Ensemble model 'config_pair' must have platform type 'ensemble' and empty backend type",
    "config_platform": "unexpected platform type 'nosuch' for config_platform",
    "batching_size_zero": "dynamic batching preferred size must be positive for batching_size_zero",
    "batching_size_large": "dynamic batching preferred size must be <= max batch size for batching_size_large",
    "batching_default_level": "default priority level must be in range [1, 2] for batching_default_level",
    "batching_no_default_level": "default priority level must be in range [1, 2] for batching_no_default_level",
    "batching_policy_level": "priority queue policy must have priority level in range [1, 2] for batching_policy_level",
    "batching_ordering_levels": "Only one priority level is allowed when 'preserve_ordering' is true for "
    "batching_ordering_levels",
    "batching_ordering_delay": "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
    "for batching_ordering_delay",
    "batching_two_schedulers": "failed to read text proto from",
    "sequence_no_name": "sequence batching control tensor must have a name for sequence_no_name",
    "sequence_no_values": "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
    "'bool_false_true' for CONTROL_SEQUENCE_START for sequence_no_values",
    "sequence_one_value": "sequence batching control 'int32_false_true' must have exactly 2 entries for "
    "CONTROL_SEQUENCE_START for sequence_one_value",
    "sequence_two_kinds": "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
    "'bool_false_true' for CONTROL_SEQUENCE_START for sequence_two_kinds",
    "sequence_corrid_type": "unexpected data type for control CONTROL_SEQUENCE_CORRID for sequence_corrid_type. "
    "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    "cache_decoupled": "Response Cache does not currently support model cache_decoupled with 'decoupled' transaction "
    "policy. Please disable the response cache.",
    "cache_sequence": "Response Cache does not currently support model cache_sequence with sequence batching "
    "scheduler. Please disable the response cache.",
    "ensemble_scheduling_on_python": "ensemble scheduling cannot be set for model 'ensemble_scheduling_on_python' "
    "whose platform is not ensemble",
    "ensemble_no_scheduling": "ensemble scheduling must be set for ensemble ensemble_no_scheduling whose platform is "
    "ensemble",
    "ensemble_no_step": "must specify 'step' for ensemble 'ensemble_no_step'",
    "ensemble_unknown_model": "ensemble ensemble_unknown_model contains models that are not available or ambiguous: "
    "nosuch",
    "ensemble_no_input_map": "must specify 'input_map' in step 0 of ensemble 'ensemble_no_input_map'",
    "ensemble_instances": "instance group should not be specified for ensemble 'ensemble_instances'",
    "ensemble_type": "in ensemble ensemble_type, ensemble tensor IN: inconsistent data type: TYPE_INT32 is inferred "
    "from model ensemble_type while TYPE_FP32 is inferred from model good",
    "ensemble_unknown_tensor": "in ensemble ensemble_unknown_tensor, ensemble tensor IN is mapping to non-existing "
    "input NOSUCH in model good",
    "ensemble_unused_output": "ensemble output 'LOST' for ensemble ensemble_unused_output' is not used",
}
_POLL_TEXTS = {f"{topic}/{model}": text for topic in ("broken", "reload") for model, text in POLL_FAILURES.items()}
_NEW_FOLDER_TEXTS = {
    "poll/new_with_broken_config": "failed to read text proto from",
    "poll/new_without_version": "at least one version must be available under the version policy of model 'new_empty'",
    "poll/new_without_anything": "Invalid model name: Could not determine backend for model 'new_nothing'",
}

DECISIONS = (
    Accepted(
        "`generate` has the rules for parameters that all other ways have: `sequence_id`, `priority` and `timeout` "
        "mean something to the server, and names of Triton's own are refused. Triton passes them on to the model.",
        ("generate/reserved_names",),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage",
    ),
    Accepted(
        "As above, so `generate` can take part in a sequence.", ("sequences/generate", "sequences/generate_not_started")
    ),
    Accepted(
        "A metric of a family that is gone is told why, and what to do, behind Triton's text.",
        ("control_utils/orphan",),
        200,
        "keep it for as long as its metrics, as in self.family",
    ),
    Accepted(
        "A client's region may begin anywhere in its file; in Triton it has to begin at a page.",
        ("shared_memory/register_odd_offset",),
    ),
    Accepted(
        "There are no GPUs here: a region of a GPU is refused with the text of a Triton that is built without GPUs.",
        ("shared_memory/cuda_register",),
    ),
    Accepted(
        "A datatype that is spelled as in `config.pbtxt` is refused as in Triton, and the error also names the right "
        "one.",
        ("admission/config_type_name", "admission/string_type_name"),
        400,
        "invalid datatype for input IN. In requests ",
    ),
    Accepted(
        "Where there is no GPU, the flag that serves the model on the CPU is named, too.",
        ("broken/config_gpu", "broken/config_gpu_suffix", "reload/config_gpu", "reload/config_gpu_suffix"),
        200,
        "has kind KIND_GPU but no GPUs are available; --gpu-fallback=cpu serves the model on the CPU",
    ),
    Accepted(
        "The error says what is wrong with the name of a metric; Triton's text is sometimes memory that it has freed.",
        ("control_utils/family_bad_name",),
        200,
        "Invalid metric name",
        sometimes=True,
    ),
    Accepted(
        "Where a configuration cannot be used, Triton's index names the model and only the log says why; stubserve's "
        "index gives that reason (Triton's own words), with the state UNAVAILABLE.",
        tuple(_POLL_TEXTS),
        200,
        texts=_POLL_TEXTS,
    ),
    Accepted(
        "As above, for folders that appear while the repository is polled; one without a version is no row in Triton's "
        "index.",
        tuple(_NEW_FOLDER_TEXTS),
        200,
        texts=_NEW_FOLDER_TEXTS,
    ),
    Accepted(
        "When only the version policy changes, the model goes on in both servers, but Triton shows the old policy.",
        ("update/policy",),
        200,
    ),
    Accepted(
        "When such a load fails, the client also gets the reason, after Triton's text.",
        (
            "control/load_unknown",
            "control/three_dots",
            "namespaces/load_unknown",
            "duplicates/load_both",
            "control/files_without_config",
            "control/no_auto_complete",
            "control/files",
            "control/override_bad_json",
            "control/override_bad_value",
            "control/override_unknown_field",
            "control/override_other_name",
        ),
    ),
    Accepted(
        "As above, over gRPC.",
        ("control/grpc_load_unknown",),
        "INTERNAL",
        "failed to load 'nosuch', failed to poll from model repository: model not found in any model repository",
    ),
    Accepted(
        "Names of models and files that leave their folder are refused as such; Triton 2.51 takes `..` for a folder, "
        "and only logs what is wrong with a file.",
        ("control/traversal", "control/files_outside", "control/files_slash_outside"),
        400,
        texts={
            "control/traversal": "model name must not contain path traversal characters",
            "control/files_outside": "must stay within model directory.",
            "control/files_slash_outside": "must stay within model directory.",
        },
    ),
    Accepted(
        "A file that is not base64 is refused; Triton loads the part that it can read.",
        ("control/files_not_base64",),
        400,
        "no base64",
    ),
    Accepted(
        "Real Triton never answers the load of a model whose file is missing, and keeps the model's lock.",
        ("reload/code_no_file", "reload/code_other_filename"),
        200,
        "Python model file not found in",
    ),
    Accepted(
        "The memory of a model's stubs is in its statistics; Triton's Python backend reports none.",
        (
            "statistics/shape_of_answer",
            "statistics/fresh_model",
            "statistics/fresh_batching_model",
            "statistics/decoupled_model",
            "versions/latest_stats",
            "versions/all_stats",
            "versions/two_stats",
            "versions/specific_stats",
        ),
        200,
    ),
    Accepted("As above, over gRPC.", ("grpc/statistics_fresh", "grpc/statistics_version_only"), "OK"),
    Accepted(
        "A slot of an iterative sequence is free when the model lets its request go; Triton has a request of its own "
        "do that, which it counts as failed.",
        (
            "sequences/iterating_once",
            "sequences/iterating_thrice",
            "sequences/iterating_oldest_once",
            "sequences/iterating_oldest_thrice",
        ),
        200,
    ),
    Accepted(
        "As above, where the model refuses the request.",
        ("sequences/iterating_model_error_at_first", "sequences/iterating_oldest_model_error_at_first"),
        500,
        "refused by the model",
    ),
    Accepted(
        "Each response of a decoupled model is counted by its place; Triton's Python backend reports none to the "
        "statistics that it has for them.",
        (
            "grpc_stream/decoupled_none",
            "grpc_stream/decoupled_one",
            "grpc_stream/decoupled_three",
            "grpc_stream/decoupled_error",
            "grpc_stream/decoupled_error_then_two",
            "grpc_stream/decoupled_raise_after_two",
        ),
        "OK",
    ),
    Accepted("As above, for a model that is called by another.", ("calls/statistics_of_stream",), 200),
    Accepted(
        "A model that is not decoupled sends a response without the final flag, and fails: the client of a stream gets "
        "it and nothing else, and stubserve says with it that nothing follows.",
        ("grpc_stream/sent_then_raise", "grpc_stream/sent_then_return"),
        "OK",
    ),
    Accepted(
        "As above, for the client of a single answer: Triton writes the response and an error of its own one behind "
        "the other, which is no JSON; stubserve tells the model's error.",
        ("behaviour/sender_sent_then_raise", "behaviour/sender_sent_then_return"),
    ),
    Accepted(
        "Each server names its own backend folder.",
        ("broken/config_runtime_gpu", "reload/config_runtime_gpu"),
        200,
        "unable to find backend library 'nosuch.py' for model 'config_runtime_gpu', searched: ",
    ),
    Accepted(
        "A decoupled model lets go of its response sender after some responses and before the final flag: Triton's "
        "client waits for ever; stubserve ends the request and says so in its log.",
        ("grpc_stream/decoupled_let_go_after_two", "grpc_stream/final_let_go_after_two"),
        "OK",
    ),
    Accepted(
        "An error among the responses that a model gets from another: Triton's iterator never ends, and its instance "
        "is lost.",
        ("calls/stream_error", "calls/stream_error_then_two", "calls/stream_raise_after_two"),
        200,
        "an error of the model",
        texts={"calls/stream_raise_after_two": "ValueError: minus ten"},
    ),
    Accepted(
        "A model whose only instance calls the model itself: Triton waits for ever, stubserve names the chain.",
        ("calls/itself",),
        200,
        "can never run",
    ),
    Accepted("stubserve also gives its own version over gRPC.", ("grpc/metadata_server",), "OK"),
    Accepted("The health service has `Watch`; Triton has no such method.", ("grpc/health_watch",)),
    Accepted(
        "When a message cannot be parsed, Triton ends the stream with OK, as if all were well.",
        ("grpc_stream/malformed", "grpc_stream/malformed_after_one"),
        "INTERNAL",
        "Unable to parse request",
    ),
    Accepted(
        "A model that answers twice under one name: real Triton's message describes one output twice as large and "
        "another without a type, which no client can read.",
        ("grpc_infer/model_twice",),
        "OK",
    ),
    Accepted(
        "stubserve gives its own version.",
        ("metadata/server", "http/origin_header", "http/get_with_body_then_next"),
        200,
    ),
    Accepted(
        "Compressed data that is damaged or none at all: Triton serves what its decompressor left behind, stubserve "
        "refuses it.",
        (
            "compression/deflate_without_header",
            "compression/not_compressed",
            "compression/truncated",
            "compression/damaged",
        ),
        400,
        "unable to decompress the request body",
    ),
    Accepted(
        "HTTP allows a space before `q=`; Triton then overlooks the whole entry.",
        ("compression/accept_weights_spaces",),
        200,
    ),
    Accepted(
        "Clients percent-encode a model's name in the path; stubserve decodes it, Triton looks for the encoded name.",
        (
            "metadata/percent_encoded_name",
            "metadata/percent_slash_name",
            "metadata/name_with_space",
            "health/percent_encoded_path",
            "http/encoded_null",
            "http/encoded_utf8_in_path",
        ),
    ),
    Accepted(
        "Real Triton crashes, or its stub does; stubserve answers.",
        (
            "classes/strings",
            "tensor/dlpack_from_array",
            "tensor/dlpack_sliced",
            "tensor/dlpack_complex",
            "tensor/dlpack_twice",
            "message/bls_cancelled",
            "behaviour/sender_raise",
            "behaviour/sender_twice",
            "control_utils/counter_negative",
            "control_utils/gauge_labels_number",
            "control_utils/load_refused",
            "control_utils/unload_refused",
            "grpc_stream/cancel_decoupled",
        ),
        sometimes=True,
    ),
    Accepted(
        "A model that answers with an unknown output and lacks one of its own has the name wrong. Triton drops the "
        "unknown one; stubserve says so to the client, unless --check-outputs=never.",
        ("behaviour/unknown_output", "grpc_infer/model_unknown_output"),
        None,
        "output 'SURPRISE' is not in its configuration; output 'EXTRA' is not among the outputs that it answered",
    ),
    Accepted(
        "A model that returns None and lets go of its response sender can never answer. Triton's client waits for "
        "ever; stubserve's is told.",
        ("behaviour/none", "behaviour/none_element"),
    ),
    Accepted(
        "Triton closes the connection of a request it cannot parse; stubserve says what is wrong with it first.",
        (
            "http/length_text",
            "http/length_negative",
            "http/length_plus",
            "http/garbage",
            "http/lower_case_method",
            "http/chunked_bad_size",
            "http/header_no_colon",
            "http/space_in_path",
            "http/tls_hello",
            "http/http2_preface",
        ),
        400,
        texts={
            "http/tls_hello": "this port speaks HTTP, not HTTPS",
            "http/http2_preface": "this port speaks HTTP/1.1, not HTTP/2; gRPC is served on port",
        },
    ),
    Accepted(
        "A request of HTTP/1.1 has one Host header, by RFC 9112; Triton does not look.",
        ("http/no_host", "http/two_hosts", "http/bad_host"),
        400,
        "Request must have one Host header with a valid value",
    ),
    Accepted(
        "A head has at most 64 KiB and 256 fields; Triton closes the connection over the first, and counts no fields.",
        ("http/head_too_long", "http/too_many_fields"),
        431,
    ),
    Accepted(
        "Triton accepts what request smuggling is made of (two lengths, a length and chunks, a space before the "
        "colon); stubserve refuses it.",
        ("http/length_twice", "http/length_and_chunked", "http/header_space_before_colon"),
        400,
    ),
    Accepted(
        "stubserve's parser refuses methods that no route has, and bytes outside ASCII in a path.",
        ("http/unknown_method", "http/connect_method", "http/utf8_in_path"),
        400,
    ),
    Accepted(
        "Triton's parser wants no more than one request at a time, and none of: an empty line before a request, chunk "
        "extensions, a request line that arrives in two packets. stubserve follows the standard.",
        ("http/pipelined", "http/leading_empty_line", "http/chunked_extension", "http/body_in_parts"),
        200,
    ),
    Accepted(
        "stubserve answers HTTP/1.0, and what claims to be 2.0, with `Connection: close` and a length.",
        ("http/version_1_0", "http/version_1_0_keep_alive", "http/version_1_0_infer", "http/version_2_0"),
        200,
    ),
    Accepted("Connection options ignore case in HTTP, but not in Triton.", ("http/connection_close_upper",), 200),
    Accepted("A fragment is no part of the path.", ("http/fragment",), 200),
    Accepted("Triton says 100 Continue to an expectation it does not know.", ("http/expect_unknown",), 200),
    Accepted(
        "What follows a body that is longer than its Content-Length is the start of another request: stubserve waits "
        "for the rest of that, Triton closes at once.",
        ("http/length_too_short",),
    ),
    Accepted(
        "Not HTTP: Triton closes at once, stubserve waits for the end of the first line.",
        ("http/line_feeds_only",),
    ),
    Accepted(
        "The text of 2.51 contains the compiler's name of a C++ type.",
        ("message/request_parameters_list", "message/request_parameters_text"),
        200,
        "Expect dict, got",
    ),
    Accepted(
        "In Triton the binding itself fails to convert the number, with an exception of another class.",
        ("message/request_negative_correlation", "surface/r_corr_big", "surface/corr_bls_surr"),
        200,
        "TritonModelException",
    ),
    Accepted("Arrays of text become BYTES; Triton refuses them.", ("tensor/dtype_U3", "surface/t_unicode")),
    Accepted(
        "Parameters that a model gives may be floats, as those of clients may.",
        ("message/request_parameters_float",),
        200,
    ),
    Accepted(
        "The error names the parameters that cannot be sent.",
        ("surface/params_bls_big", "surface/params_bls_surr"),
        200,
        "Unsupported value type on parameters: '",
    ),
    Accepted(
        "The classes are written in Python, not bound: enumerations are Python's own, so their members can be compared "
        "and listed and are always the same object; arguments have names; a class tells the module it is written in.",
        (
            "surface/memtype_cmp",
            "surface/memtype_members",
            "surface/memtype_iter",
            "surface/error_is",
            "surface/fam_kw_value",
            "surface/dl_method",
            "surface/r_trace_ctor",
            "surface/mods",
            "surface/sender_class",
        ),
        200,
    ),
    Accepted(
        "Objects without tensors can be copied and pickled.",
        ("surface/req_pickle", "surface/resp_pickle", "surface/resp_copy", "surface/err_pickle"),
        200,
        "no error",
    ),
    Accepted(
        "A metric that is made again is the same object; Triton makes another object with the same values.",
        ("surface/fam_same_metric",),
        200,
        "True",
    ),
    Accepted(
        "A stub is a program of the interpreter that the model's environment has: it heeds PYTHONPATH and the like, "
        "has a main module, writes UTF-8 line by line, and leads a process group. Triton's is an isolated, embedded "
        "one.",
        ("surface/sys_flags", "surface/main_has_file", "surface/stdout_enc", "surface/pgid"),
        200,
    ),
    Accepted(
        "A consumed capsule is renamed as the DLPack standard says.",
        ("tensor/dlpack_used_name",),
        200,
        "used_dltensor",
    ),
    Accepted(
        "Upstream's helper fails at the missing name while it makes its message.",
        ("modelconfig/input_extra_no_name", "modelconfig/output_extra_no_name"),
        200,
        "contains property other than 'name'",
    ),
    Accepted(
        "The log's verbosity is a number below 2**32; Triton takes a larger one for what is left of it.",
        ("logging/verbose_too_large",),
        200,
    ),
    Accepted(
        "Log settings change all together or not at all; Triton keeps those before the one that it refuses.",
        ("logging/good_then_bad",),
        200,
    ),
    Accepted(
        "A Python model may have implicit state. Triton's Python backend is given the initial state with each request, "
        "and what the model answers as the new one is dropped.",
        ("states/next_zero", "states/next_file", "states/next_oldest", "states/next_single"),
        200,
        texts={
            "states/next_zero": "(1, 3) [7, 7, 7]",
            "states/next_file": "(1, 2) [507, -593]",
            "states/next_oldest": "(1, 2) [507, -593]",
            "states/next_single": "(2,) [507, -593]",
        },
    ),
    Accepted(
        "A state of any size begins with the size that its `initial_state` has. Triton takes 1, and shows the first "
        "element only.",
        ("states/variable",),
        200,
        "(1, 3) [0, 0, 0]",
    ),
)

_REFUSED_ENTRIES = {
    "environment/archive_climbs": "Path contains '..'",
    "environment/archive_device": "The entry is a device",
    "environment/archive_pipe": "The entry is a pipe",
    "environment/archive_link_outside": "Symlink leads out of the environment",
}

ENVIRONMENTS = (
    Accepted(
        "Archives may also be compressed with bzip2, xz or zstd; Triton's library was built without these.",
        ("environment/archive_bzip2", "environment/archive_xz", "environment/archive_zstd"),
        200,
        "READY",
    ),
    Accepted(
        "A conda environment in place has no script to activate it, and needs none.",
        ("environment/folder_conda_meta",),
        200,
        "READY",
    ),
    Accepted(
        "The stub is run by the environment's Python; Triton's brings its own, whatever the environment has.",
        ("environment/folder_no_python",),
        200,
        "there is no Python in it",
    ),
    Accepted(
        "What would be written outside of the environment, or leads out of it, is refused, and so is what no "
        "environment has; Triton extracts it.",
        tuple(_REFUSED_ENTRIES),
        200,
        texts=_REFUSED_ENTRIES,
    ),
    Accepted(
        "The error names the file, and says what is wrong with it.",
        ("environment/archive_truncated", "environment/archive_text", "environment/archive_of_no_bytes"),
        200,
        "archive_read_open_filename() failed. ",
    ),
    Accepted(
        "An archive that ends within a file is refused as damaged; Triton goes on with the part that it has.",
        ("environment/archive_damaged",),
        200,
        "unexpected end of data",
    ),
    Accepted(
        "`$$TRITON_MODEL_DIRECTORY` stands for a folder where a value begins with it; further on Triton replaces other "
        "characters than those.",
        ("environment/variable_within",),
        200,
        "Failed to get the canonical path for /x/$$TRITON_MODEL_DIRECTORY/env.tar.gz.",
    ),
)

_REFUSED_WHEN_READ = (
    "written_twice",
    "unused",
    "unused_input",
    "loop",
    "no_model_name",
    "no_output_map",
    "dynamic_batching",
)

ENSEMBLES = (
    Accepted(
        "A request that fails counts once; Triton counts each failure of an ensemble twice.",
        (
            "ensembles/statistics_refused_by_member",
            "ensembles/statistics_exception",
            "ensembles/statistics_error",
            "ensembles/statistics_second_fails",
        ),
    ),
    Accepted(
        "Configurations show `max_inflight_requests`, a newer Triton's field.",
        _starting("ensembles/config_"),
        200,
    ),
    Accepted(
        "A tensor between two steps that is an output as well, and not requested, is made for the step that reads it; "
        "Triton answers 'unexpected deadlock'.",
        ("ensembles/requested_OUT",),
        200,
    ),
    Accepted(
        "An output that a step in the middle makes can be requested alone; Triton answers 'unexpected deadlock'.",
        ("ensembles/requested_middle",),
        200,
    ),
    Accepted(
        "A step is asked only for outputs that are read; Triton asks for all that are mapped.",
        ("ensembles/seen_by_both_OUT",),
        200,
        '"requested": ["SEEN"]',
    ),
    Accepted(
        "The final flag of a stream comes with the last response where nothing more can follow it, and else alone; "
        "when a step is known to be over differs from run to run.",
        (*_starting("ensembles/stream_"), *_starting("ensembles/statistics_streams")),
        sometimes=True,
    ),
    Accepted(
        "An error of a step that names no model has the step and its model at its end.",
        (
            *_starting("ensembles/code_"),
            *_starting("ensembles/grpc_code_"),
            "ensembles/nested_code_NOT_FOUND",
            "ensembles/generate_error",
            "ensembles/generate_stream_-1",
            *(
                f"ensembles/behaves_{which}error_{what}"
                for which in ("", "last_", "second_", "optional_")
                for what in ("empty", "and_tensors")
            ),
        ),
        text="(step ",
    ),
    Accepted(
        "A model that calls an ensemble gets the code of its error, as with any model; 2.51 makes INTERNAL of it.",
        ("ensembles/called_producing_nothing",),
        200,
        "<__ErrorCode.INVALID_ARG: 3>, \"in ensemble 'behaves', [request id: <id_unknown>] expected 1 inputs",
    ),
    Accepted(
        "A load that fails because of the configuration says why; Triton says so in its log only.",
        tuple(f"ensemble_loads/load_bad_{name}" for name in _REFUSED_WHEN_READ),
    ),
    Accepted(
        "An ensemble may have samples of a warm-up, which go through all its steps; Triton refuses them.",
        ("ensemble_loads/start_bad_warmup", "ensemble_loads/load_bad_warmup"),
        200,
    ),
    Accepted(
        "The error names all missing members; Triton names only the first.",
        ("ensemble_loads/load_bad_two_unknown",),
    ),
    Accepted(
        "An ensemble that needs itself cannot be loaded: the error names the circle, beginning with that ensemble. "
        "Triton begins anywhere, and says that there is no version when it is asked again.",
        (
            "ensemble_loads/load_bad_circle_b",
            "ensemble_loads/load_bad_circle_of_three_a",
            "ensemble_loads/load_bad_circle_of_three_b",
            "ensemble_loads/load_bad_circle_of_three_c",
        ),
    ),
    Accepted(
        "Where streams meet that cannot, the step is named by its model; Triton names the ensemble.",
        ("ensemble_loads/load_bad_two_streams", "ensemble_loads/load_bad_stream_and_input"),
    ),
    Accepted(
        "A model without a version that has never been loaded is unknown.",
        ("ensemble_loads/start_bad_no_version", "ensemble_loads/load_bad_no_version"),
        404,
    ),
)

SHARED = (
    Accepted(
        "An answer from the response cache has the parameters of the one that was computed; Triton leaves them out.",
        (
            *_starting("cache/cached_flow_"),
            "cache/twice_cached_flow",
            "cache/twice_both_cached",
            "cache/five_times_both_cached",
            "cache/ensemble_of_both",
        ),
    ),
    Accepted(
        "On a stream, Triton answers what it puts into the cache with 'response output count mismatch'.",
        ("cache/streamed", "cache/streamed_final"),
    ),
    Accepted(
        "The key of an answer covers shapes, wanted outputs and parameters; in Triton such requests share an answer.",
        ("cache/other_shapes", "cache/other_outputs", "cache/other_parameters"),
        200,
    ),
    Accepted(
        "Only successful answers are kept; Triton answers what failed before with success and no outputs.",
        ("cache/error_twice", "cache/error_in_a_flow_twice", "cache/exception_twice"),
        500,
    ),
    Accepted(
        "The resources of an unloaded model do not count any more; Triton may still refuse a load for them.",
        ("limits/limited_given_other_order", "limits/limited_given_together", "limits/limited_other_order"),
        sometimes=True,
    ),
)

SECTIONS: Mapping[str, tuple[Accepted, ...]] = {
    "As the newer Triton 2.73 does": NEWER_TRITON,
    "By decision": DECISIONS,
    "Environments of models": ENVIRONMENTS,
    "HTTP/2 below gRPC": HTTP2,
    "Ensembles": ENSEMBLES,
    "Response cache and rate limiter": SHARED,
}

ACCEPTED: Mapping[str, Accepted] = {
    name: entry for entries in SECTIONS.values() for entry in entries for name in entry.cases
}
