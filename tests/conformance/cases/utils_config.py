"""pb_utils.ModelConfig and the configuration helpers, evaluated inside the stub."""

# ruff: noqa: E501 - a case reads best on one line

from ..request import Case, evaluations

_IN = "{'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [1]}"
_WITH = f"config(input=[{_IN}], output=[{_IN}])"


def _add(where: str, entry: str, base: str = "config()") -> str:
    return f"after({base}, ('add_{where}', {entry}))['{where}']"


CASES: tuple[Case, ...] = evaluations(
    "modelconfig",
    {
        "as_dict": "config().as_dict()",
        "as_dict_is_live": "(lambda c: (c.as_dict().update(extra=1), c.as_dict())[1])(config())",
        "batch_size": "after(config(), ('set_max_batch_size', 4))['max_batch_size']",
        "batch_size_lower": "after(config(max_batch_size=8), ('set_max_batch_size', 4))",
        "batch_size_higher": "after(config(max_batch_size=2), ('set_max_batch_size', 4))['max_batch_size']",
        "dynamic_batching": "after(config(), ('set_dynamic_batching',))['dynamic_batching']",
        "dynamic_batching_there": "after(config(dynamic_batching={'a': 1}), ('set_dynamic_batching',))['dynamic_batching']",
        "dynamic_batching_sequence": "after(config(sequence_batching={}), ('set_dynamic_batching',))",
        "dynamic_batching_ensemble": "after(config(ensemble_scheduling={}), ('set_dynamic_batching',))",
        "policy": "after(config(), ('set_model_transaction_policy', {'decoupled': True}))['model_transaction_policy']",
        "policy_other_key": "after(config(), ('set_model_transaction_policy', {'nosuch': True}))",
        "policy_two_keys": "after(config(), ('set_model_transaction_policy', {'decoupled': True, 'x': 1}))",
        "policy_conflict": "after(config(model_transaction_policy={'decoupled': True}), "
        "('set_model_transaction_policy', {'decoupled': False}))",
        "policy_same": "after(config(model_transaction_policy={'decoupled': True}), "
        "('set_model_transaction_policy', {'decoupled': True}))['model_transaction_policy']",
        "policy_empty": "after(config(), ('set_model_transaction_policy', {}))['model_transaction_policy']",
        **{f"{where}_{name}": _add(where, entry, base) for where in ("input", "output") for name, entry, base in (
            ("new", _IN, "config()"),
            ("second", "{'name': 'B', 'data_type': 'TYPE_INT8', 'dims': [2, -1]}", _WITH),
            ("same", _IN, _WITH),
            ("other_type", "{'name': 'IN', 'data_type': 'TYPE_INT8', 'dims': [1]}", _WITH),
            ("other_dims", "{'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [1, 2]}", _WITH),
            ("no_name", "{'data_type': 'TYPE_FP32', 'dims': [1]}", "config()"),
            ("no_type", "{'name': 'A', 'dims': [1]}", "config()"),
            ("no_dims", "{'name': 'A', 'data_type': 'TYPE_FP32'}", "config()"),
            ("empty", "{}", "config()"),
            ("extra", "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [1], 'format': 0}", "config()"),
            ("extra_no_name", "{'data_type': 'TYPE_FP32', 'dims': [1], 'nosuch': 0}", "config()"),
            ("fills_blank", _IN, "config(input=[{'name': 'IN', 'data_type': 'TYPE_INVALID', 'dims': []}], "
                                 "output=[{'name': 'IN', 'data_type': 'TYPE_INVALID', 'dims': []}])"),
            ("fills_missing", _IN, "config(input=[{'name': 'IN'}], output=[{'name': 'IN'}])"),
            ("optional", "{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}", "config()"),
        )},
        "input_optional_conflict": _add("input", "{'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}",
                                        "config(input=[{'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': False}])"),
        "input_twice": f"after(config(), ('add_input', {_IN}), ('add_input', {_IN}))['input']",
        "bad_json": "pb_utils.ModelConfig('{')",
        "get_input": "pb_utils.get_input_config_by_name({'input': [{'name': 'A', 'dims': [1]}]}, 'A')",
        "get_input_absent": "pb_utils.get_input_config_by_name({'input': [{'name': 'A'}]}, 'B')",
        "get_input_no_inputs": "pb_utils.get_input_config_by_name({}, 'B')",
        "get_output": "pb_utils.get_output_config_by_name({'output': [{'name': 'A', 'dims': [1]}]}, 'A')",
        "get_output_absent": "pb_utils.get_output_config_by_name({'output': []}, 'B')",
        "decoupled_absent": "pb_utils.using_decoupled_model_transaction_policy({})",
        "decoupled_true": "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': True}})",
        "decoupled_empty": "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {}})",
        "args_keys": "sorted(args)",
        "args_types": "sorted({type(v).__name__ for v in args.values()})",
        "model_dir": "pb_utils.get_model_dir()",
        "module_name": "__name__",
        "package": "__package__",
        "module_file": "__file__",
        "argv": "__import__('sys').argv",
        "path_first": "__import__('sys').path[0]",
        "path_has_version": "__import__('os').path.dirname(__file__) in __import__('sys').path",
        "path_has_model": "__import__('os').path.dirname(__import__('os').path.dirname(__file__)) in __import__('sys').path",
        "main_thread": "__import__('threading').current_thread() is __import__('threading').main_thread()",
        "names": "[n for n in ('TritonError', 'TritonModelException', 'Tensor', 'InferenceRequest', 'InferenceResponse', 'Logger', "
        "'PreferredMemory', 'MetricFamily', 'load_model', 'unload_model', 'is_model_ready', 'get_model_dir') if hasattr(pb_utils, n)]",
        "names_not_there": "[n for n in ('new_shm_tensor', 'TritonPythonBackend', 'SharedMemory', 'ResponseIterator') "
        "if hasattr(pb_utils, n)]",
        "class_modules": "[c.__name__ for c in (pb_utils.Tensor, pb_utils.InferenceRequest, pb_utils.TritonError)]",
        "c_module": "sorted(n for n in ('InferenceTrace', 'InferenceResponseSender', 'ResponseIterator', 'MetricKind', 'MemoryType') "
        "if hasattr(__import__('c_python_backend_utils'), n))",
    },
)  # fmt: skip
