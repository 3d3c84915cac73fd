"""`ModelConfig` as Triton's documentation describes it: the contents of a `config.pbtxt`.

Numbers and order are Triton's own, because clients send and receive it as protobuf, and its JSON follows the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from stubserve.model_config.protobuf_schema import add_file

MODEL_CONFIG_FILE = "model_config.proto"

# What `platform` says in the configuration of an ensemble
ENSEMBLE_PLATFORM = "ensemble"

model_config_pb2: Any = add_file(
    MODEL_CONFIG_FILE,
    "inference",
    """
enum DataType: TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16
    TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16
message ModelRateLimiter: repeated Resource resources = 1; uint32 priority = 2
message ModelRateLimiter.Resource: string name = 1; bool global = 2; uint32 count = 3
message ModelInstanceGroup: string name = 1; Kind kind = 4; int32 count = 2; ModelRateLimiter rate_limiter = 6;
    repeated int32 gpus = 3; repeated SecondaryDevice secondary_devices = 8; repeated string profile = 5;
    bool passive = 7; string host_policy = 9
enum ModelInstanceGroup.Kind: KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
message ModelInstanceGroup.SecondaryDevice: SecondaryDeviceKind kind = 1; int64 device_id = 2
enum ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind: KIND_NVDLA
message ModelTensorReshape: repeated int64 shape = 1
message ModelInput: string name = 1; DataType data_type = 2; Format format = 3; repeated int64 dims = 4;
    ModelTensorReshape reshape = 5; bool is_shape_tensor = 6; bool allow_ragged_batch = 7; bool optional = 8;
    bool is_non_linear_format_io = 9
enum ModelInput.Format: FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
message ModelOutput: string name = 1; DataType data_type = 2; repeated int64 dims = 3;
    ModelTensorReshape reshape = 5; string label_filename = 4; bool is_shape_tensor = 6;
    bool is_non_linear_format_io = 7
message BatchInput: Kind kind = 1; repeated string target_name = 2; DataType data_type = 3;
    repeated string source_input = 4
enum BatchInput.Kind: BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE
    BATCH_ITEM_SHAPE_FLATTEN
message BatchOutput: repeated string target_name = 1; Kind kind = 2; repeated string source_input = 3
enum BatchOutput.Kind: BATCH_SCATTER_WITH_INPUT_SHAPE
message ModelVersionPolicy: oneof policy_choice { Latest latest = 1; All all = 2; Specific specific = 3 }
message ModelVersionPolicy.Latest: uint32 num_versions = 1
message ModelVersionPolicy.All:
message ModelVersionPolicy.Specific: repeated int64 versions = 1
message ModelOptimizationPolicy: Graph graph = 1; ModelPriority priority = 2; Cuda cuda = 3;
    ExecutionAccelerators execution_accelerators = 4; PinnedMemoryBuffer input_pinned_memory = 5;
    PinnedMemoryBuffer output_pinned_memory = 6; uint32 gather_kernel_buffer_threshold = 7;
    bool eager_batching = 8
enum ModelOptimizationPolicy.ModelPriority: PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
message ModelOptimizationPolicy.Graph: int32 level = 1
message ModelOptimizationPolicy.Cuda: bool graphs = 1; bool busy_wait_events = 2;
    repeated GraphSpec graph_spec = 3; bool output_copy_stream = 4
message ModelOptimizationPolicy.Cuda.GraphSpec: int32 batch_size = 1; map<string, Shape> input = 2;
    LowerBound graph_lower_bound = 3
message ModelOptimizationPolicy.Cuda.GraphSpec.Shape: repeated int64 dim = 1
message ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound: int32 batch_size = 1; map<string, Shape> input = 2
message ModelOptimizationPolicy.ExecutionAccelerators: repeated Accelerator gpu_execution_accelerator = 1;
    repeated Accelerator cpu_execution_accelerator = 2
message ModelOptimizationPolicy.ExecutionAccelerators.Accelerator: string name = 1;
    map<string, string> parameters = 2
message ModelOptimizationPolicy.PinnedMemoryBuffer: bool enable = 1
message ModelQueuePolicy: TimeoutAction timeout_action = 1; uint64 default_timeout_microseconds = 2;
    bool allow_timeout_override = 3; uint32 max_queue_size = 4
enum ModelQueuePolicy.TimeoutAction: REJECT DELAY
message ModelDynamicBatching: repeated int32 preferred_batch_size = 1; uint64 max_queue_delay_microseconds = 2;
    bool preserve_ordering = 3; uint64 priority_levels = 4; uint64 default_priority_level = 5;
    ModelQueuePolicy default_queue_policy = 6; map<uint64, ModelQueuePolicy> priority_queue_policy = 7
message ModelSequenceBatching: oneof strategy_choice { StrategyDirect direct = 3; StrategyOldest oldest = 4 };
    uint64 max_sequence_idle_microseconds = 1; repeated ControlInput control_input = 2;
    repeated State state = 5; bool iterative_sequence = 6
message ModelSequenceBatching.Control: Kind kind = 1; repeated int32 int32_false_true = 2;
    repeated float fp32_false_true = 3; repeated bool bool_false_true = 5; DataType data_type = 4
enum ModelSequenceBatching.Control.Kind: CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END
    CONTROL_SEQUENCE_CORRID
message ModelSequenceBatching.ControlInput: string name = 1; repeated Control control = 2
message ModelSequenceBatching.InitialState: DataType data_type = 1; repeated int64 dims = 2;
    oneof state_data { bool zero_data = 3; string data_file = 4 }; string name = 5
message ModelSequenceBatching.State: string input_name = 1; string output_name = 2; DataType data_type = 3;
    repeated int64 dims = 4; repeated InitialState initial_state = 5; bool use_same_buffer_for_input_output = 6;
    bool use_growable_memory = 7
message ModelSequenceBatching.StrategyDirect: uint64 max_queue_delay_microseconds = 1;
    float minimum_slot_utilization = 2
message ModelSequenceBatching.StrategyOldest: int32 max_candidate_sequences = 1;
    repeated int32 preferred_batch_size = 2; uint64 max_queue_delay_microseconds = 3;
    bool preserve_ordering = 4
message ModelEnsembling: repeated Step step = 1; uint32 max_inflight_requests = 2
message ModelEnsembling.Step: string model_name = 1; int64 model_version = 2; map<string, string> input_map = 3;
    map<string, string> output_map = 4; string model_namespace = 5
message ModelParameter: string string_value = 1
message ModelWarmup: string name = 1; uint32 batch_size = 2; map<string, Input> inputs = 3; uint32 count = 4
message ModelWarmup.Input: DataType data_type = 1; repeated int64 dims = 2;
    oneof input_data_type { bool zero_data = 3; bool random_data = 4; string input_data_file = 5 }
message ModelOperations: repeated string op_library_filename = 1
message ModelTransactionPolicy: bool decoupled = 1
message ModelRepositoryAgents: repeated Agent agents = 1
message ModelRepositoryAgents.Agent: string name = 1; map<string, string> parameters = 2
message ModelResponseCache: bool enable = 1
message ModelMetrics: repeated MetricControl metric_control = 1
message ModelMetrics.MetricControl: MetricIdentifier metric_identifier = 1;
    oneof metric_options { HistogramOptions histogram_options = 2 }
message ModelMetrics.MetricControl.MetricIdentifier: string family = 1
message ModelMetrics.MetricControl.HistogramOptions: repeated double buckets = 1
message ModelConfig: string name = 1; string platform = 2; string backend = 17; string runtime = 25;
    ModelVersionPolicy version_policy = 3; int32 max_batch_size = 4; repeated ModelInput input = 5;
    repeated ModelOutput output = 6; repeated BatchInput batch_input = 20;
    repeated BatchOutput batch_output = 21; ModelOptimizationPolicy optimization = 12;
    oneof scheduling_choice { ModelDynamicBatching dynamic_batching = 11;
    ModelSequenceBatching sequence_batching = 13; ModelEnsembling ensemble_scheduling = 15 };
    repeated ModelInstanceGroup instance_group = 7; string default_model_filename = 8;
    map<string, string> cc_model_filenames = 9; map<string, string> metric_tags = 10;
    map<string, ModelParameter> parameters = 14; repeated ModelWarmup model_warmup = 16;
    ModelOperations model_operations = 18; ModelTransactionPolicy model_transaction_policy = 19;
    ModelRepositoryAgents model_repository_agents = 23; ModelResponseCache response_cache = 24;
    ModelMetrics model_metrics = 26
""",
)

if TYPE_CHECKING:
    ModelConfig = Any
else:
    ModelConfig = model_config_pb2.ModelConfig


def is_repeated(field: FieldDescriptor) -> bool:
    """Lists and maps. Protobuf 5 has no property for it, and newer releases warn about the `label` that it has."""
    return isinstance(field.default_value, list)
