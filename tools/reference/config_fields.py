"""What each field of a model's configuration does here: message -> field -> a sentence. A field without an effect says so.

The field's type comes from the protocol's own description. `tests/tools/test_reference.py` wants a row for every field.
"""

from __future__ import annotations

_GPU = "For GPUs; no effect on a CPU."
_TENSORRT = "For TensorRT; refused with other platforms."
_CACHE = "Answers equal requests from the response cache; with `--cache-config`. See [Caching](../guides/caching.md)."
_AGENT = "Who checks or relocates the model's files before a load: `checksum`, or agents in `--repoagent-directory`."

FIELDS: dict[str, dict[str, str]] = {
    "ModelConfig": {
        "name": "The model's name. It must be that of its folder, and may be left out.",
        "platform": "With a backend that has several: `onnxruntime_onnx`, `pytorch_libtorch`, `torch_aoti`. `ensemble` for an ensemble.",
        "backend": "`python`, `onnxruntime`, `pytorch`, `identity`, `repeat`, `square`, or the name of a folder with a `model.py` in `--backend-directory`. "
        "Without it the name of the model's file decides.",
        "runtime": "The file that runs the model: `model.py` for a backend in Python, or for modules of PyTorch.",
        "version_policy": "The numbered folders that are served. Without it, the one with the highest number.",
        "max_batch_size": "The largest batch, in rows. From 1 on, each tensor has a first dimension that `dims` does not list; with 0 it has not.",
        "input": 'The inputs of the model: `input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]`.',
        "output": "The outputs of the model, written as `input` is.",
        "batch_input": "Inputs that are computed from a batch's requests, for ragged batches. For onnxruntime and pytorch.",
        "batch_output": "How outputs of a ragged batch are handed out to its requests. For onnxruntime and pytorch.",
        "optimization": "Settings of the backend that runs a file.",
        "dynamic_batching": "Joins requests that wait to batches. `dynamic_batching { }` is enough. See [Batching](../guides/batching.md).",
        "sequence_batching": "Requests with the same correlation id run one after the other, on the same instance.",
        "ensemble_scheduling": "The steps of an ensemble.",
        "instance_group": "The number of processes that run the model, and where they run. Left out, it is one process; two for onnxruntime.",
        "default_model_filename": "The file to load instead of `model.py`, `model.onnx` or `model.pt`.",
        "cc_model_filenames": _GPU,
        "metric_tags": "Labels for the model's metrics.",
        "parameters": "Read by the backend and handed to a `model.py`. stubserve itself reads `EXECUTION_ENV_PATH`, `THREADS_PER_INSTANCE`, `INSTANCES_PER_STUB`, `EXECUTE_TIMEOUT_SECS` and `OPENAI_ROUTES`.",
        "model_warmup": "Requests that each instance executes before it is ready.",
        "model_operations": "Libraries of custom operators, for onnxruntime.",
        "model_transaction_policy": "Whether the model is decoupled: `model_transaction_policy { decoupled: true }`.",
        "model_repository_agents": _AGENT,
        "response_cache": _CACHE,
        "model_metrics": "Buckets of the model's histograms.",
    },
    "ModelVersionPolicy": {
        "latest": "Serves the newest versions. Without a policy, the newest version is served.",
        "all": "Serves every version: `version_policy { all { } }`.",
        "specific": "Serves the versions in the list.",
    },
    "ModelVersionPolicy.Latest": {
        "num_versions": "The number of versions that are served, the newest first. `latest { num_versions: 2 }` serves versions 7 and 6 of 5, 6 and 7."
    },
    "ModelVersionPolicy.All": {},
    "ModelVersionPolicy.Specific": {
        "versions": "The numbers of the versions. `specific { versions: [ 3, 5 ] }` serves 3 and 5."
    },
    "ModelInput": {
        "name": "The name of the input in requests.",
        "data_type": "The type of the elements, for example `TYPE_FP32` or `TYPE_STRING`. A request with another type is refused.",
        "format": "`FORMAT_NHWC` or `FORMAT_NCHW` want three dimensions; otherwise without an effect, as in Triton.",
        "dims": "The shape, without the dimension of the batch. `[ 3, -1 ]` is three rows of any length.",
        "reshape": "Another shape with as many elements, which the model gets instead.",
        "is_shape_tensor": _TENSORRT,
        "allow_ragged_batch": "Requests with different shapes may share a batch.",
        "optional": "`true`: a request may leave the input out.",
        "is_non_linear_format_io": _TENSORRT,
    },
    "ModelTensorReshape": {"shape": "The shape that the model gets, or gives."},
    "ModelOutput": {
        "name": "The name of the output in responses.",
        "data_type": "What the model is expected to give. As in Triton, what it does give is sent as it is.",
        "dims": "The shape, without the dimension of the batch. `[ 3, -1 ]` is three rows of any length.",
        "reshape": "Another shape with as many elements, which the client gets instead.",
        "label_filename": "A file in the model's folder with a name for each class, one a line, for requests that ask for classes.",
        "is_shape_tensor": _TENSORRT,
        "is_non_linear_format_io": _TENSORRT,
    },
    "BatchInput": {
        "kind": "What is computed: lengths, sums of lengths, shapes of the requests.",
        "target_name": "The inputs of the model that get it.",
        "data_type": "`TYPE_FP32` or `TYPE_INT32`.",
        "source_input": "The inputs that it is computed from.",
    },
    "BatchOutput": {
        "target_name": "The outputs that are divided in this way.",
        "kind": "`BATCH_SCATTER_WITH_INPUT_SHAPE`: each request gets the part that has the shape of its input.",
        "source_input": "The input whose shapes decide.",
    },
    "ModelOptimizationPolicy": {
        "graph": "How far onnxruntime optimizes the graph.",
        "priority": _GPU,
        "cuda": _GPU,
        "execution_accelerators": "`openvino` on the CPU, for onnxruntime.",
        "input_pinned_memory": _GPU,
        "output_pinned_memory": _GPU,
        "gather_kernel_buffer_threshold": _GPU,
        "eager_batching": _GPU,
    },
    "ModelOptimizationPolicy.Graph": {"level": "0 all, 1 extended, -1 basic, 2 none."},
    "ModelOptimizationPolicy.Cuda": dict.fromkeys(
        ("graphs", "busy_wait_events", "graph_spec", "output_copy_stream"), _GPU
    ),
    "ModelOptimizationPolicy.Cuda.GraphSpec": dict.fromkeys(("batch_size", "input", "graph_lower_bound"), _GPU),
    "ModelOptimizationPolicy.Cuda.GraphSpec.Shape": {"dim": _GPU},
    "ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound": dict.fromkeys(("batch_size", "input"), _GPU),
    "ModelOptimizationPolicy.ExecutionAccelerators": {
        "gpu_execution_accelerator": "`cuda` and `tensorrt`, for ONNX models on GPUs; no effect on a CPU.",
        "cpu_execution_accelerator": "`openvino`, where the package for it is installed.",
    },
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator": {
        "name": "The accelerator's name: `openvino`, `tensorrt` or `cuda`.",
        "parameters": 'Settings of the accelerator, for example `{ key: "precision_mode" value: "FP16" }`.',
    },
    "ModelOptimizationPolicy.PinnedMemoryBuffer": {"enable": _GPU},
    "ModelDynamicBatching": {
        "preferred_batch_size": "Batches of these sizes are executed at once, others when the delay is over. Example: `[ 8, 16 ]`.",
        "max_queue_delay_microseconds": "The longest time that a request waits for others, for example 2000 for 2 ms. With 0 a request never waits while an instance is free.",
        "preserve_ordering": "Responses leave in the order in which their requests came.",
        "priority_levels": "The number of priorities. With 3, requests have the priorities 1, 2 and 3, and 1 goes first.",
        "default_priority_level": "The priority of a request that names none.",
        "default_queue_policy": "Limits of the queue, for example `{ max_queue_size: 100 }`.",
        "priority_queue_policy": "Limits for the requests of one priority: `{ key: 2 value { max_queue_size: 10 } }`.",
    },
    "ModelQueuePolicy": {
        "timeout_action": "A request that has waited too long is refused (`REJECT`), or waits on behind all others (`DELAY`).",
        "default_timeout_microseconds": "The longest time that a request waits, for example 500000 for half a second. 0: no limit.",
        "allow_timeout_override": "`true`: a request may ask for a shorter time with its parameter `timeout`.",
        "max_queue_size": "The number of requests that may wait, for example 100. Further requests are refused with 503. 0: no limit.",
    },
    "ModelSequenceBatching": {
        "direct": "A sequence has a place of its own in every batch. The default.",
        "oldest": "The oldest requests of an instance's sequences are batched.",
        "max_sequence_idle_microseconds": "A sequence ends when it has had no request for this time, for example 5000000 for 5 s. 0 means 1 s. No effect with `iterative_sequence`.",
        "control_input": "Inputs that tell the model where in its sequence a request is.",
        "state": "Tensors that are kept for a sequence from one request to the next (implicit state).",
        "iterative_sequence": "A request executes again and again until its model lets it go.",
    },
    "ModelSequenceBatching.StrategyDirect": {
        "max_queue_delay_microseconds": "The longest time that a batch waits for `minimum_slot_utilization`.",
        "minimum_slot_utilization": "The share of an instance's slots for which a batch waits: 0.5 for half of them.",
    },
    "ModelSequenceBatching.StrategyOldest": {
        "max_candidate_sequences": "The number of sequences that an instance has at a time. 0 means `max_batch_size`.",
        "preferred_batch_size": "The same as in `dynamic_batching`.",
        "max_queue_delay_microseconds": "The same as in `dynamic_batching`.",
        "preserve_ordering": "No effect: an instance answers its batches in order.",
    },
    "ModelSequenceBatching.ControlInput": {
        "name": "The input's name. It is not one of `input`.",
        "control": "The meaning of the input, in one or more entries.",
    },
    "ModelSequenceBatching.Control": {
        "kind": "Whether the sequence starts with this request (`CONTROL_SEQUENCE_START`) or ends with it (`..._END`), whether there is a request at all (`..._READY`), or the correlation id (`..._CORRID`).",
        "int32_false_true": "The two integers for false and true: `[ 0, 1 ]`.",
        "fp32_false_true": "The two floats for false and true: `[ 0, 1 ]`.",
        "bool_false_true": "The two booleans for false and true: `[ false, true ]`.",
        "data_type": "The type of the correlation id: `TYPE_UINT64`, `TYPE_INT64`, `TYPE_UINT32`, `TYPE_INT32` or `TYPE_STRING`.",
    },
    "ModelSequenceBatching.State": {
        "input_name": "The input that the model is given the state as. It is not one of `input`.",
        "output_name": "The output that the model answers the new state as. Clients may ask for it if it is one of `output` as well.",
        "data_type": "The type of both.",
        "dims": "The shape of both, without the dimension of the batch. -1 is any size, and the size may change with each request.",
        "initial_state": "What a sequence begins with, one at most. Without it zeros, and 1 in place of -1 in `dims`.",
        "use_same_buffer_for_input_output": "A Python model is given the state itself rather than a copy, and may write the new one there.",
        "use_growable_memory": "No effect: states of any size may grow. Refused without `use_same_buffer_for_input_output`.",
    },
    "ModelSequenceBatching.InitialState": {
        "data_type": "The type of the state.",
        "dims": "The size that a sequence begins with, no -1 in it; elsewhere as in the state.",
        "zero_data": "`true`: the sequence begins with zeros, or with empty strings.",
        "data_file": "A file in the model's folder `initial_state`: elements as they lie in memory, strings behind their lengths.",
        "name": "Any name but an empty one.",
    },
    "ModelEnsembling": {
        "step": "The models of the ensemble. A step runs when its inputs are there, whatever its place in the list.",
        "max_inflight_requests": "The number of requests of one step that may be under way, over all requests to the ensemble. 0: no limit.",
    },
    "ModelEnsembling.Step": {
        "model_name": "The model of this step, which may be an ensemble.",
        "model_version": "Its version; -1 for the newest.",
        "input_map": "Input of the model -> tensor of the ensemble.",
        "output_map": "Output of the model -> tensor of the ensemble.",
        "model_namespace": "No effect: there are no namespaces of models.",
    },
    "ModelInstanceGroup": {
        "name": "The beginning of the instances' names: `net` gives `net_0`, `net_1`.",
        "kind": "`KIND_GPU`, for Python, ONNX and PyTorch models on a machine with GPUs; elsewhere it is refused, or runs on the CPU with `--gpu-fallback=cpu`. `KIND_CPU`. `KIND_MODEL` leaves it to the model. Python models that do not say run on GPUs where there are any.",
        "count": "The number of instances. Each is a process: `instance_group [ { count: 4 } ]` starts four.",
        "rate_limiter": "What its instances share with others; with `--rate-limit=execution_count`.",
        "gpus": "For Python, ONNX and PyTorch models, an instance on each of these; all GPUs where KIND_GPU names none. Left out with `--gpu-fallback=cpu` where they are not there.",
        "secondary_devices": _GPU,
        "profile": _TENSORRT,
        "passive": "Its instances are loaded, and get no requests.",
        "host_policy": "No effect: there are no host policies.",
    },
    "ModelRateLimiter": {
        "resources": "What an instance needs to execute. See [Rate limiting](../guides/caching.md#share-a-resource).",
        "priority": "An instance of priority n has 1/n of the executions of one with priority 1.",
    },
    "ModelRateLimiter.Resource": {
        "name": "The name of the resource, which models that share it write in the same way.",
        "global": "`true`: all devices share the resource. `false`: each device has its own.",
        "count": "The amount that one execution takes, for example 1.",
    },
    "ModelInstanceGroup.SecondaryDevice": dict.fromkeys(("kind", "device_id"), _GPU),
    "ModelParameter": {"string_value": "The value. Parameters are texts."},
    "ModelWarmup": {
        "name": "A name for the log.",
        "batch_size": "The number of rows of the request. 0 executes nothing.",
        "inputs": 'The data for each input: `{ key: "X" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }`.',
        "count": "The number of times that the request is executed. 0 means once.",
    },
    "ModelWarmup.Input": {
        "data_type": "The type of the input.",
        "dims": "The shape of the input, without the dimension of the batch.",
        "zero_data": "`true`: the input gets zeros.",
        "random_data": "`true`: the input gets random values.",
        "input_data_file": "The input gets the content of this file in the model's folder `warmup`.",
    },
    "ModelOperations": {"op_library_filename": 'The paths of the libraries: `[ "/opt/ops/libmine.so" ]`.'},
    "ModelTransactionPolicy": {"decoupled": "`true`: a request may have any number of responses, also none."},
    "ModelRepositoryAgents": {"agents": _AGENT},
    "ModelRepositoryAgents.Agent": {
        "name": "`checksum`, or the name of a folder in `--repoagent-directory`.",
        "parameters": "Settings of the agent. For `checksum`: `MD5:<file>`, and the digest that the file is to have.",
    },
    "ModelResponseCache": {"enable": _CACHE},
    "ModelMetrics": {"metric_control": "One entry for each metric."},
    "ModelMetrics.MetricControl": {
        "metric_identifier": "The metric that the entry is about.",
        "histogram_options": "The buckets of the metric.",
    },
    "ModelMetrics.MetricControl.MetricIdentifier": {
        "family": "`nv_inference_first_response_histogram_ms`, which `--metrics-config=histogram_latencies=true` counts."
    },
    "ModelMetrics.MetricControl.HistogramOptions": {
        "buckets": "The upper bounds in milliseconds: `[ 1, 5, 10, 100 ]`."
    },
}
