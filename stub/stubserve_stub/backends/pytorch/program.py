"""A loaded model, whatever its file was: a function to call, and its arguments.

`resolve` finds the argument of each input of a configuration, and the result of each output, by upstream's rules.

If all names of inputs are names of arguments, these are meant. Else, if all are `<name>__<index>`, the index counts.
Else the order of the configuration counts, and the log says so. Outputs have no names in TorchScript, so there the
index or the order counts. A dictionary that the model takes has its inputs' names as keys, and one that it returns has
its outputs' names (upstream refuses such a result). Controls and states of sequences come last.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from stubserve_stub.api import dlpack
from stubserve_stub.backends.loading import TensorInfo, added_inputs, added_outputs, compare, compare_type, dims_of
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BF16, BY_CONFIG_NAME, BY_NUMBER, BYTES

_TORCH_NAMES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}
# numpy has no BF16; torch views these as what they are.
_SIXTEEN_BITS = np.dtype(np.int16)


class Tensors:
    """Makes tensors out of memory, and finds the memory of tensors. `torch` is the package."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._bfloat16 = torch.bfloat16
        self._int16 = torch.int16
        # Older versions of torch have unsigned integers of 8 bits only.
        types = {
            number: getattr(torch, _TORCH_NAMES.get(kind.name, kind.name.lower()), None)
            for number, kind in BY_NUMBER.items()
            if number != BYTES
        }
        self._numbers: Dict[Any, int] = {dtype: number for number, dtype in types.items() if dtype is not None}
        self._numpy: Dict[int, Any] = {number: BY_NUMBER[number].numpy or _SIXTEEN_BITS for number in types}
        with warnings.catch_warnings():
            # torch warns about read-only memory, once in a process. Programs that only read get such memory as it is.
            warnings.simplefilter("ignore")
            read_only = np.zeros(1, np.uint8)
            read_only.flags.writeable = False
            torch.from_numpy(read_only)

    def has(self, datatype: int) -> bool:
        return datatype in self._numbers.values()

    def number_of(self, dtype: Any) -> Optional[int]:
        """The number of a type of torch, None for types that the protocol lacks."""
        return self._numbers.get(dtype)

    def from_memory(self, memory: Any, datatype: int, shape: Sequence[int]) -> Any:
        """A tensor over memory, an array of uint8, which it keeps alive."""
        tensor = self._torch.from_numpy(memory.view(self._numpy[datatype]).reshape(shape))
        return tensor.view(self._bfloat16) if datatype == BF16 else tensor

    def on_gpu(self, memory: Any, datatype: int, shape: Sequence[int]) -> Any:
        """A tensor over memory of a GPU (`DeviceMemory`), which it keeps alive."""
        capsule = dlpack.export_device(memory, datatype, shape, memory.address, memory.gpu.number)
        return self._torch.from_dlpack(capsule)

    def plain(self, tensor: Any) -> Any:
        """The tensor with its bytes in memory, in C order; without a copy where possible."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def memory_of(self, tensor: Any) -> Any:
        """The bytes of a tensor of a known type, in C order, as an array of uint8; without a copy where possible."""
        tensor = self.plain(tensor)
        if not tensor.is_cpu:
            tensor = tensor.cpu()
        if tensor.dtype is self._bfloat16:
            tensor = tensor.view(self._int16)
        return tensor.numpy().reshape(-1).view(np.uint8)


class Argument(NamedTuple):
    """One argument, or one result. `names` all mean it; the first one is for errors.

    With `strings` it is a list of strings. An argument that is not `required` has a `default`. `info` is the file's
    description of the tensor, or None.
    """

    names: Sequence[str]
    strings: bool = False
    required: bool = True
    default: Any = None
    info: Optional[TensorInfo] = None


class TorchProgram(NamedTuple):
    """A loaded model. `call` takes the arguments in their order and returns what the model does.

    `takes_dict`: its one argument is a dictionary of tensors with the inputs' names as keys. `arguments` and `results`
    are None where they are not known before the model runs. `in_order`: only the order of the configuration counts, not
    names. `writes_inputs`: it may write to its inputs, or keep them. `explains` is False for code with a better
    traceback.
    """

    call: Callable[..., Any]
    arguments: Optional[Sequence[Argument]] = None
    results: Optional[Sequence[Argument]] = None
    takes_dict: bool = False
    in_order: bool = False
    writes_inputs: bool = True
    explains: bool = True


_STRING = "TYPE_STRING"


class Naming(NamedTuple):
    """Positions by names. `remarks` are lines for the log."""

    inputs: Dict[str, int]
    outputs: Dict[str, int]
    remarks: Sequence[str]


def resolve(config: Mapping[str, Any], program: TorchProgram, tensors: Tensors) -> Naming:
    """Raises Refusal for a configuration that does not fit the program."""
    remarks: List[str] = []
    given = {what: config.get(what) or [] for what in ("input", "output")}
    if not given["output"]:
        raise Refusal(
            f"model configuration must contain at least one output, none were specified (model '{config['name']}'): a "
            "file of PyTorch's does not say what its tensors are"
        )
    given = {what: [*described, *_added(config, what, described)] for what, described in given.items()}
    for what, described in given.items():
        for tensor in described:
            _check_type(config, what, tensor, tensors)
    # The inputs that are made for each batch follow those that clients send.
    made = [(name, batch["data_type"]) for batch in config.get("batch_input") or () for name in batch["target_name"]]
    names = [tensor["name"] for tensor in given["input"]] + [name for name, _ in made]
    if program.takes_dict:
        inputs = {name: position for position, name in enumerate(names)}
    else:
        inputs = _positions(config["name"], "input", names, program.arguments, program.in_order, remarks)
        _check_required(config, inputs, program.arguments)
    names = [tensor["name"] for tensor in given["output"]]
    outputs = _positions(config["name"], "output", names, program.results, program.in_order, remarks)
    _check_arguments(config, "input", given["input"], inputs, program.arguments)
    _check_arguments(config, "output", given["output"], outputs, program.results)
    if program.arguments is not None:
        for name, data_type in made:
            info = program.arguments[inputs[name]].info
            if info is not None:
                compare_type(config, "batch input", name, data_type, info)
    return Naming(inputs, outputs, remarks)


def _added(config: Mapping[str, Any], what: str, described: Sequence[Any]) -> List[Mapping[str, Any]]:
    """The controls and states of sequence batching. A state may be an output of the configuration, too."""
    added = added_inputs(config) if what == "input" else added_outputs(config)
    names = {tensor["name"] for tensor in described}
    return [tensor for tensor in added if tensor["name"] not in names]


def _positions(
    model: str,
    what: str,
    names: Sequence[str],
    arguments: Optional[Sequence[Argument]],
    in_order: bool,
    remarks: List[str],
) -> Dict[str, int]:
    known = {name: position for position, argument in enumerate(arguments or ()) for name in argument.names}
    ordered = {name: position for position, name in enumerate(names)}
    if in_order:
        positions = ordered
    elif all(name in known for name in names):
        positions = {name: known[name] for name in names}
    else:
        indices = {name: _index(name) for name in names}
        positions = {name: index for name, index in indices.items() if index is not None}
        if len(positions) < len(names):
            positions = ordered
            if len(names) > 1:
                remarks.append(_unnamed(what, names, known))
    _refuse_overlaps(model, what, positions, arguments)
    return positions


def _index(name: str) -> Optional[int]:
    """The index in `<name>__<index>`, None in other names."""
    text = name.partition("__")[2]
    return int(text) if text.isascii() and text.isdigit() else None


def _unnamed(what: str, names: Sequence[str], known: Mapping[str, int]) -> str:
    arguments = f" or the names of arguments ({', '.join(known)})" if known and what == "input" else ""
    return (
        f"{what}s {', '.join(names)} do not all follow the <name>__<index> naming convention{arguments}; they are "
        "taken in the order of the model configuration"
    )


def _refuse_overlaps(
    model: str, what: str, positions: Mapping[str, int], arguments: Optional[Sequence[Argument]]
) -> None:
    named: Dict[int, str] = {}
    for name, position in positions.items():
        if position in named:
            raise Refusal(f"{what}s '{named[position]}' and '{name}' of model '{model}' are both number {position}")
        named[position] = name
    if arguments is None or not positions:
        return
    if len(positions) > len(arguments):
        raise _miscounted(model, what, len(positions), arguments)
    last = max(named)
    if last >= len(arguments):
        raise Refusal(
            f"{what} '{named[last]}' of model '{model}' is number {last}, but the model has {len(arguments)} of them, "
            "and the first one is number 0"
        )


def _check_required(
    config: Mapping[str, Any], positions: Mapping[str, int], arguments: Optional[Sequence[Argument]]
) -> None:
    if arguments is None:
        return
    missing = {position for position, argument in enumerate(arguments) if argument.required} - set(positions.values())
    if missing:
        raise _miscounted(config["name"], "input", len(positions), arguments)
    for tensor in config["input"]:
        if tensor.get("optional") and arguments[positions[tensor["name"]]].required:
            raise Refusal(
                f"optional input '{tensor['name']}' of model '{config['name']}' needs a default value in the model: "
                f"argument '{arguments[positions[tensor['name']]].names[0]}' has none"
            )


def _miscounted(model: str, what: str, given: int, arguments: Sequence[Argument]) -> Refusal:
    return Refusal(
        f"unable to load model '{model}', configuration expects {given} {what}s, model provides {len(arguments)}: "
        f"{', '.join(argument.names[0] for argument in arguments)}"
    )


def _check_type(config: Mapping[str, Any], what: str, tensor: Mapping[str, Any], tensors: Tensors) -> None:
    kind = tensor["data_type"]
    if kind == _STRING:
        if len(dims_of(tensor)) + bool(config.get("max_batch_size")) > 1:
            raise Refusal(
                f"Triton only supports 1 dimensional List of String as {what} for '{tensor['name']}' for model "
                f"'{config['name']}'"
            )
    elif kind not in BY_CONFIG_NAME or not tensors.has(BY_CONFIG_NAME[kind].number):
        raise Refusal(f"unsupported datatype {kind} for {what} '{tensor['name']}' for model '{config['name']}'")


def _check_arguments(
    config: Mapping[str, Any],
    what: str,
    described: Sequence[Mapping[str, Any]],
    positions: Mapping[str, int],
    arguments: Optional[Sequence[Argument]],
) -> None:
    if arguments is None:
        return
    for tensor in described:
        argument = arguments[positions[tensor["name"]]]
        if what == "input" and argument.strings != (tensor["data_type"] == _STRING):
            raise Refusal(
                f"unable to load model '{config['name']}', configuration expects datatype {tensor['data_type']} for "
                f"input '{tensor['name']}', model takes {'a list of strings' if argument.strings else 'a tensor'} as "
                f"'{argument.names[0]}'"
            )
        if argument.info is not None:
            compare(config, what, tensor, argument.info)
