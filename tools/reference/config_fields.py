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
        "version_policy": "Which of the numbered folders are served.",
        "max_batch_size": "The largest batch, in rows. From 1 on, each tensor has a first dimension that `dims` does not list; with 0 it has not.",
        "input": "The inputs.",
        "output": "The outputs.",
        "batch_input": "Inputs that are computed from a batch's requests, for ragged batches. For onnxruntime and pytorch.",
        "batch_output": "How outputs of a ragged batch are handed out to its requests. For onnxruntime and pytorch.",
        "optimization": "Settings of the backend that runs a file.",
        "dynamic_batching": "Requests that wait are joined to batches. An empty `{ }` is enough.",
        "sequence_batching": "Requests with the same correlation id run one after the other, on the same instance.",
        "ensemble_scheduling": "The steps of an ensemble.",
        "instance_group": "How many processes run the model. One, where it is left out; two for onnxruntime.",
        "default_model_filename": "The file to load instead of `model.py`, `model.onnx` or `model.pt`.",
        "cc_model_filenames": _GPU,
        "metric_tags": "Labels for the model's metrics.",
        "parameters": "Read by the backend and handed to a `model.py`. stubserve itself reads `EXECUTION_ENV_PATH`, `THREADS_PER_INSTANCE`, `EXECUTE_TIMEOUT_SECS` and `OPENAI_ROUTES`.",
        "model_warmup": "Requests that each instance executes before it is ready.",
        "model_operations": "Libraries of custom operators, for onnxruntime.",
        "model_transaction_policy": "How many responses a request may have.",
        "model_repository_agents": _AGENT,
        "response_cache": _CACHE,
        "model_metrics": "Buckets of the model's histograms.",
    },
    "ModelVersionPolicy": {
        "latest": "The newest ones. The default, with one of them.",
        "all": "All of them.",
        "specific": "Those that are listed.",
    },
    "ModelVersionPolicy.Latest": {"num_versions": "How many."},
    "ModelVersionPolicy.All": {},
    "ModelVersionPolicy.Specific": {"versions": "Their numbers."},
    "ModelInput": {
        "name": "Its name in requests.",
        "data_type": "As `TYPE_FP32`. A request with another type is refused.",
        "format": "`FORMAT_NHWC` or `FORMAT_NCHW` want three dimensions; otherwise without an effect, as in Triton.",
        "dims": "Its shape; -1 for any length. Without the batch's dimension.",
        "reshape": "Another shape with as many elements, which the model gets instead.",
        "is_shape_tensor": _TENSORRT,
        "allow_ragged_batch": "Requests with different shapes may share a batch.",
        "optional": "A request may leave it out.",
        "is_non_linear_format_io": _TENSORRT,
    },
    "ModelTensorReshape": {"shape": "The shape that the model gets, or gives."},
    "ModelOutput": {
        "name": "Its name in responses.",
        "data_type": "What the model is expected to give. As in Triton, what it does give is sent as it is.",
        "dims": "Its shape; -1 for any length. Without the batch's dimension.",
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
        "target_name": "The outputs that are handed out so.",
        "kind": "`BATCH_SCATTER_WITH_INPUT_SHAPE`: as the input of each request is shaped.",
        "source_input": "That input.",
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
        "name": "Which one.",
        "parameters": "What it is told.",
    },
    "ModelOptimizationPolicy.PinnedMemoryBuffer": {"enable": _GPU},
    "ModelDynamicBatching": {
        "preferred_batch_size": "Batches of these sizes are sent at once, others when the delay is over.",
        "max_queue_delay_microseconds": "How long a request may wait for others. 0: it never waits while an instance is free.",
        "preserve_ordering": "Responses leave in the order in which their requests came.",
        "priority_levels": "How many priorities there are; 1 goes first.",
        "default_priority_level": "That of a request that names none.",
        "default_queue_policy": "How long a request may wait in the queue, and how many may.",
        "priority_queue_policy": "The same for single priorities.",
    },
    "ModelQueuePolicy": {
        "timeout_action": "What becomes of a request that has waited too long: `REJECT` it, or `DELAY` it behind all others.",
        "default_timeout_microseconds": "How long a request may wait; 0 for as long as it takes.",
        "allow_timeout_override": "A request may say a shorter time.",
        "max_queue_size": "How many requests may wait; further ones are refused. 0 for any number.",
    },
    "ModelSequenceBatching": {
        "direct": "A sequence has a place of its own in every batch. The default.",
        "oldest": "The oldest requests of an instance's sequences are batched.",
        "max_sequence_idle_microseconds": "After how long without a request a sequence is over. A second, where it is 0. No effect with `iterative_sequence`.",
        "control_input": "Inputs that tell the model where in its sequence a request is.",
        "state": "Tensors that are kept for a sequence from one request to the next (implicit state).",
        "iterative_sequence": "A request executes again and again until its model lets it go.",
    },
    "ModelSequenceBatching.StrategyDirect": {
        "max_queue_delay_microseconds": "How long a batch may wait for `minimum_slot_utilization`.",
        "minimum_slot_utilization": "Which share of an instance's slots a batch waits for.",
    },
    "ModelSequenceBatching.StrategyOldest": {
        "max_candidate_sequences": "How many sequences an instance has at a time. `max_batch_size`, where it is 0.",
        "preferred_batch_size": "As of `dynamic_batching`.",
        "max_queue_delay_microseconds": "As of `dynamic_batching`.",
        "preserve_ordering": "No effect: an instance answers its batches in order.",
    },
    "ModelSequenceBatching.ControlInput": {
        "name": "The input's name. It is not one of `input`.",
        "control": "What it says.",
    },
    "ModelSequenceBatching.Control": {
        "kind": "That the sequence starts or ends with this request, that there is a request at all, or the correlation id.",
        "int32_false_true": "How false and true are written, as two integers.",
        "fp32_false_true": "The same as floats.",
        "bool_false_true": "The same as booleans.",
        "data_type": "The type of the correlation id: `TYPE_UINT64`, `TYPE_INT64`, `TYPE_UINT32`, `TYPE_INT32` or `TYPE_STRING`.",
    },
    "ModelSequenceBatching.State": {
        "input_name": "The input that the model is given the state as. It is not one of `input`.",
        "output_name": "The output that the model answers the new state as. Clients may ask for it if it is one of `output` as well.",
        "data_type": "Of both.",
        "dims": "Of both, without the dimension of the batch. -1 for any size, also another one in each request.",
        "initial_state": "What a sequence begins with, one at most. Without it zeros, and 1 in place of -1 in `dims`.",
        "use_same_buffer_for_input_output": "A Python model is given the state itself rather than a copy, and may write the new one there.",
        "use_growable_memory": "No effect: states of any size may grow. Refused without `use_same_buffer_for_input_output`.",
    },
    "ModelSequenceBatching.InitialState": {
        "data_type": "That of the state.",
        "dims": "The size that a sequence begins with, no -1 in it; elsewhere as in the state.",
        "zero_data": "Zeros, or empty strings.",
        "data_file": "A file in the model's folder `initial_state`: elements as they lie in memory, strings behind their lengths.",
        "name": "Any name but an empty one.",
    },
    "ModelEnsembling": {
        "step": "The models of the ensemble. A step runs when its inputs are there, whatever its place in the list.",
        "max_inflight_requests": "How many requests of one step may be under way, over all requests to the ensemble. 0 for any number.",
    },
    "ModelEnsembling.Step": {
        "model_name": "The model of this step, which may be an ensemble.",
        "model_version": "Its version; -1 for the newest.",
        "input_map": "Input of the model -> tensor of the ensemble.",
        "output_map": "Output of the model -> tensor of the ensemble.",
        "model_namespace": "No effect: there are no namespaces of models.",
    },
    "ModelInstanceGroup": {
        "name": "The beginning of its instances' names.",
        "kind": "`KIND_GPU`, for Python, ONNX and PyTorch models on a machine with GPUs; elsewhere it is refused, or runs on the CPU with `--gpu-fallback=cpu`. `KIND_CPU`. `KIND_MODEL` leaves it to the model. Python models that do not say run on GPUs where there are any.",
        "count": "How many instances; each is a process.",
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
        "name": "Its name.",
        "global": "Whether all devices share it.",
        "count": "How much of it an instance needs.",
    },
    "ModelInstanceGroup.SecondaryDevice": dict.fromkeys(("kind", "device_id"), _GPU),
    "ModelParameter": {"string_value": "The value. Parameters are texts."},
    "ModelWarmup": {
        "name": "A name for the log.",
        "batch_size": "How many rows; 0 executes nothing.",
        "inputs": "Name of an input -> what it gets.",
        "count": "How often it is executed.",
    },
    "ModelWarmup.Input": {
        "data_type": "Its type.",
        "dims": "Its shape, without the batch's dimension.",
        "zero_data": "It gets zeros.",
        "random_data": "It gets random values.",
        "input_data_file": "It gets the content of this file in the model's folder `warmup`.",
    },
    "ModelOperations": {"op_library_filename": "Paths of the libraries."},
    "ModelTransactionPolicy": {"decoupled": "A request may have any number of responses, also none."},
    "ModelRepositoryAgents": {"agents": _AGENT},
    "ModelRepositoryAgents.Agent": {
        "name": "`checksum`, or the name of a folder in `--repoagent-directory`.",
        "parameters": "What the agent is told. For `checksum`: `MD5:<file>`, and the digest that the file is to have.",
    },
    "ModelResponseCache": {"enable": _CACHE},
    "ModelMetrics": {"metric_control": "One entry for each metric."},
    "ModelMetrics.MetricControl": {
        "metric_identifier": "Which metric.",
        "histogram_options": "What is said about it.",
    },
    "ModelMetrics.MetricControl.MetricIdentifier": {
        "family": "`nv_inference_first_response_histogram_ms`, which `--metrics-config=histogram_latencies=true` counts."
    },
    "ModelMetrics.MetricControl.HistogramOptions": {"buckets": "The upper bounds, in milliseconds."},
}
