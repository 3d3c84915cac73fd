"""The models that do not load, each for one reason, and a few good neighbours that must load beside them."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from .repository import Model, io

_IO = io("input", "IN", "FP32", "1") + io("output", "OUT", "FP32", "1")
_IMPORT = "import triton_python_backend_utils as pb_utils\n\n\n"


def _model(body: str) -> str:
    """A model.py whose class has ``body`` (indented by the caller)."""
    return f"{_IMPORT}class TritonPythonModel:\n{body}\n    def execute(self, requests):\n        return []\n"


def _auto(*lines: str) -> str:
    """A model.py with an auto_complete_config made of ``lines``; ``c`` is the configuration."""
    body = "".join(f"        {line}\n" for line in lines)
    return _model(f"    @staticmethod\n    def auto_complete_config(c):\n{body}")


def _initialize(*lines: str) -> str:
    return _model("    def initialize(self, args):\n" + "".join(f"        {line}\n" for line in lines))


def _input(more: str, name: str = "IN", head: str = "data_type: TYPE_FP32") -> str:
    return f'input {{ name: "{name}" {head} {more} }}\n' + io("output", "OUT", "FP32", "1")


def _output(more: str, head: str = "data_type: TYPE_FP32") -> str:
    return io("input", "IN", "FP32", "1") + f'output {{ name: "OUT" {head} {more} }}\n'


def _ensemble(text: str, scheduling: str = "") -> str:
    return text + (f"ensemble_scheduling {{ {scheduling} }}\n" if scheduling else "")


_STEP = (
    'step { model_name: "good" model_version: -1 '
    'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'
)
_ENSEMBLE_HEADER = 'platform: "ensemble"\n'


def _state(initial: str) -> str:
    return f'state {{ input_name: "S" output_name: "S_NEW" data_type: TYPE_FP32 dims: [2, -1] {initial} }} '


def _initial(source: str = "zero_data: true", name: str = "z", kind: str = "FP32", dims: str = "2, 3") -> str:
    return _state(f'initial_state {{ name: "{name}" data_type: TYPE_{kind} dims: [{dims}] {source} }}')


_TWICE = _initial().replace("initial_state {", "initial_state { } initial_state {")

CODE = (
    Model("code_syntax", _IO, code="class TritonPythonModel\n    pass\n"),
    Model("code_import", _IO, code="import no_such_module_anywhere\n"),
    Model("code_top_level", _IO, code="raise RuntimeError('at import')\n"),
    Model("code_no_class", _IO, code="class Other:\n    pass\n"),
    Model("code_not_class", _IO, code="TritonPythonModel = 5\n"),
    Model("code_init", _IO, code=_model("    def __init__(self):\n        raise ValueError('constructor')\n")),
    Model("code_init_argument", _IO, code=_model("    def __init__(self, extra):\n        pass\n")),
    Model("code_initialize", _IO, code=_initialize("raise ValueError('initialize says no')")),
    Model("code_initialize_model_exception", _IO, code=_initialize("raise pb_utils.TritonModelException('own text')")),
    Model("code_initialize_key", _IO, code=_initialize("args['no such key']")),
    Model("code_initialize_arguments", _IO, code=_model("    def initialize(self):\n        pass\n")),
    Model("code_initialize_bls", _IO, code=_initialize(
        "pb_utils.InferenceRequest(model_name='good', requested_output_names=[], inputs=[]).exec()",
    )),
    Model("code_versions", _IO + "version_policy { all {} }\n", code="raise ValueError('either')\n", versions=("1", "2")),
    Model("code_bad_suffix", _IO + 'default_model_filename: "model.txt"\n', files={"1/model.txt": "x = 1\n"}),
    Model("auto_none", None, code=_auto("return None")),
    Model("auto_dict", None, code=_auto("return c.as_dict()")),
    Model("auto_raises", None, code=_auto("raise ValueError('auto-complete says no')")),
    Model("auto_lower_batch", _IO + "max_batch_size: 8\n", code=_auto("c.set_max_batch_size(4)", "return c")),
    Model("auto_dims", _IO, code=_auto("c.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [7]})", "return c")),
    Model("auto_type", _IO, code=_auto("c.add_input({'name': 'IN', 'data_type': 'TYPE_INT8', 'dims': [1]})", "return c")),
    Model("auto_no_type", _IO, code=_auto("c.add_input({'name': 'IN', 'dims': [1]})", "return c")),
    Model("auto_bad_type", None, code=_auto("c.add_input({'name': 'X', 'data_type': 'FP32', 'dims': [1]})", "return c")),
    Model("auto_zero_dim", None, code=_auto(
        "c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [0]})", "return c"
    )),
    Model("auto_scheduler", _IO + "max_batch_size: 4\nsequence_batching { }\n", code=_auto(
        "c.set_dynamic_batching()", "return c"
    )),
    Model("auto_decoupled", _IO + "model_transaction_policy { decoupled: true }\n", code=_auto(
        "c.set_model_transaction_policy({'decoupled': False})", "return c"
    )),
    Model("no_config_no_method", None, "empty"),
)  # fmt: skip

# Real Triton 2.51 waits for ever when the short-lived process that asks for auto_complete_config dies, as it does without
# a model file: these are only loaded by a server that does not auto-complete.
FILELESS = (
    Model("code_no_file", _IO, None),
    Model("code_other_filename", _IO + 'default_model_filename: "other.py"\n'),
)

CONFIG = (
    Model("config_syntax", _IO + "max_batch_size: : 4\n"),
    Model("config_unknown_field", _IO + "max_batch: 4\n"),
    Model("config_wrong_value", _IO + 'max_batch_size: "four"\n'),
    Model("config_bad_enum", io("input", "IN", "FLOAT", "1")),
    Model("config_unclosed", 'input { name: "IN"\n'),
    Model("config_other_name", _IO + 'name: "another"\n'),
    Model("config_negative_batch", _IO + "max_batch_size: -1\n"),
    Model("config_no_versions", _IO, versions=()),
    Model("config_version_missing", _IO + "version_policy { specific { versions: [7] } }\n"),
    Model("config_no_type", _input("dims: [1]", head="")),
    Model("config_no_dims", _input("")),
    Model("config_no_name", _input("dims: [1]", name="")),
    Model("config_zero_dim", _input("dims: [0]")),
    Model("config_negative_dim", _input("dims: [-2]")),
    Model("config_empty_reshape", _input("dims: [1] reshape { shape: [] }")),
    Model("config_zero_reshape", _input("dims: [1] reshape { shape: [0] }")),
    Model("config_size_reshape", _input("dims: [4] reshape { shape: [3] }")),
    Model("config_unknown_reshape", _input("dims: [-1, 4] reshape { shape: [4, 2] }")),
    Model("config_between_reshape", _input("dims: [2, -1, 4] reshape { shape: [4, -1, 2] }")),
    Model("config_nhwc", _input("dims: [1, 2] format: FORMAT_NHWC")),
    Model("config_shape_tensor", _input("dims: [1] is_shape_tensor: true")),
    Model("config_nonlinear", _input("dims: [1] is_non_linear_format_io: true")),
    Model("config_output_no_type", _output("dims: [1]", head="")),
    Model("config_output_no_dims", _output("")),
    Model("config_output_zero_dim", _output("dims: [0]")),
    Model("config_output_reshape", _output("dims: [4] reshape { shape: [3] }")),
    Model("config_output_shape_tensor", _output("dims: [1] is_shape_tensor: true")),
    Model("config_input_twice", _IO + io("input", "IN", "FP32", "1")),
    Model("config_backend", _IO, header='backend: "nosuch"\n'),
    Model("config_platform", _IO, header='platform: "nosuch"\n'),
    Model("config_pair", _IO, header='platform: "ensemble"\nbackend: "python"\n'),
    Model("config_backend_gpu", _IO + "instance_group [ { kind: KIND_GPU } ]\n", header='backend: "nosuch"\n'),
    Model("config_runtime_gpu", _IO + 'runtime: "nosuch.py"\ninstance_group [ { kind: KIND_GPU } ]\n'),
    Model("config_gpu_suffix", _IO + 'default_model_filename: "model.txt"\ninstance_group [ { kind: KIND_GPU } ]\n'),
    Model("config_gpu", _IO + "instance_group [ { kind: KIND_GPU } ]\n"),
    Model("config_gpu_id", _IO + "instance_group [ { kind: KIND_GPU gpus: [0] } ]\n"),
    Model("config_cpu_gpus", _IO + "instance_group [ { kind: KIND_CPU gpus: [0] } ]\n"),
    Model("config_model_gpus", _IO + "instance_group [ { kind: KIND_MODEL gpus: [0] } ]\n"),
    Model("config_profile", _IO + 'instance_group [ { kind: KIND_CPU profile: "0" } ]\n'),
    Model("batching_size_zero", _IO + "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [0] }\n"),
    Model("batching_size_large", _IO + "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [5] }\n"),
    Model("batching_default_level", _IO + "max_batch_size: 4\ndynamic_batching { priority_levels: 2 default_priority_level: 3 }\n"),
    Model("batching_no_default_level", _IO + "max_batch_size: 4\ndynamic_batching { priority_levels: 2 }\n"),
    Model(
        "batching_policy_level",
        _IO + "max_batch_size: 4\ndynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 3 value { max_queue_size: 1 } } }\n",
    ),
    Model(
        "batching_ordering_levels",
        _IO + "max_batch_size: 4\ndynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }\n",
    ),
    Model(
        "batching_ordering_delay",
        _IO + "max_batch_size: 4\ndynamic_batching { preserve_ordering: true "
        "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 10 } }\n",
    ),
    Model("batching_two_schedulers", _IO + "max_batch_size: 4\ndynamic_batching { }\nsequence_batching { }\n"),
    Model(
        "sequence_no_name",
        _IO + "sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } }\n",
    ),
    Model(
        "sequence_no_values",
        _IO + 'sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START } } }\n',
    ),
    Model(
        "sequence_one_value",
        _IO + 'sequence_batching { control_input { name: "S" '
        "control { kind: CONTROL_SEQUENCE_START int32_false_true: [0] } } }\n",
    ),
    Model(
        "sequence_two_kinds",
        _IO + 'sequence_batching { control_input { name: "S" '
        "control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] fp32_false_true: [0, 1] } } }\n",
    ),
    Model(
        "sequence_corrid_type",
        _IO + 'sequence_batching { control_input { name: "S" '
        "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }\n",
    ),
    *(
        Model(f"state_{name}", _IO + f"sequence_batching {{ {state} }}\n", files={"initial_state/short": "x" * 23})
        for name, state in {
            "type": _initial(kind="INT32"),
            "no_name": _initial(name=""),
            "dim_count": _initial(dims="2"),
            "variable": _initial(dims="2, -1"),
            "dims": _initial(dims="3, 3"),
            "two_initial": _TWICE,
            "no_data": _initial(""),
            "no_file": _initial('data_file: "nosuch"'),
            "short_file": _initial('data_file: "short"'),
            "twice": _initial() + _initial(),
        }.items()
    ),
    Model("batch_input_type", _IO + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT8 source_input: "IN" }\n'),
    Model("batch_input_source", _IO + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "Y" }\n'),
    Model("batch_input_sources", _IO + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 }\n'),
    Model("cache_decoupled", _IO + "response_cache { enable: true }\nmodel_transaction_policy { decoupled: true }\n"),
    Model("cache_sequence", _IO + "response_cache { enable: true }\nsequence_batching { }\n"),
    Model("force_cpu", _IO + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "maybe" } }\n'),
    Model("environment_missing", _IO + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/nonexistent/env.tar.gz" } }\n'),
    Model("environment_no_activate", _IO + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }\n', files={"env/readme": "empty"}),
    Model("label_outside", io("input", "IN", "FP32", "1") + io("output", "OUT", "FP32", "1", 'label_filename: "../good/labels.txt"')),
    Model("label_missing", io("input", "IN", "FP32", "1") + io("output", "OUT", "FP32", "1", 'label_filename: "nosuch.txt"')),
    Model("warmup_unknown_input", _IO + 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: [1] zero_data: true } } }\n'),
    Model("warmup_no_data", _IO + 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [1] } } }\n'),
    Model("warmup_file", _IO + 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [1] input_data_file: "nosuch" } } }\n'),
)  # fmt: skip

ENSEMBLE = (
    Model("ensemble_no_scheduling", _IO, None, header=_ENSEMBLE_HEADER),
    Model("ensemble_no_step", _ensemble(_IO, " "), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_unknown_model", _ensemble(_IO, _STEP.replace('"good"', '"nosuch"')), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_no_input_map", _ensemble(
        _IO, 'step { model_name: "good" model_version: -1 output_map { key: "OUT" value: "OUT" } }'
    ), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_instances", _ensemble(_IO + "instance_group [ { count: 1 } ]\n", _STEP), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_type", _ensemble(
        io("input", "IN", "INT32", "1") + io("output", "OUT", "FP32", "1"), _STEP
    ), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_unknown_tensor", _ensemble(
        _IO, _STEP.replace('key: "IN"', 'key: "NOSUCH"')
    ), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_unused_output", _ensemble(
        _IO + io("output", "LOST", "FP32", "1"), _STEP
    ), None, header=_ENSEMBLE_HEADER),
    Model("ensemble_scheduling_on_python", _ensemble(_IO, _STEP)),
)  # fmt: skip

GOOD = (
    Model("good", _IO, "identity"),
    Model("good_versions", io("output", "VALUE", "INT32", "1") + "version_policy { all {} }\n", "constant",
          versions=("1", "2")),
    Model("good_names", _IO, "identity", versions=("1", "02", "text")),
    Model("good_zero", io("output", "VALUE", "INT32", "1"), "constant", versions=("0",)),
    Model("half_broken", io("output", "VALUE", "INT32", "1") + "version_policy { all {} }\n", "constant",
          files={"2/model.py": _initialize("raise ValueError('version two is broken')")}),
)  # fmt: skip

BROKEN = CODE + CONFIG + ENSEMBLE
MODELS = BROKEN + GOOD
