"""The inputs and outputs of a loaded model version, computed once so that each request costs little."""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

from stubserve_stub.backends.cards import card_of
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES, name_of

CORRELATION_ID_CONTROL = "CONTROL_SEQUENCE_CORRID"
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"


class TensorSignature:
    """One input or output of a model, without the batch dimension.

    `dims` is what clients see. `reshape` is what the model sees, None if it is the same. `elements` is the number of
    elements in one batch item, None if a dimension is variable. `itemsize` is in bytes, 0 for BYTES. `whole_dims` are
    `dims` behind the batch dimension, if the model has one. `bit` is another power of two for each input.
    """

    def __init__(
        self,
        name: str,
        datatype: int,
        dims: Sequence[int],
        reshape: Sequence[int] | None = None,
        optional: bool = False,
        batched: bool = False,
        bit: int = 0,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = tuple(dims)
        self.whole_dims = (-1, *self.dims) if batched else self.dims
        self.bit = bit
        self.reshape = None if reshape is None else tuple(reshape)
        self.optional = optional
        self.is_bytes = datatype == BYTES
        self.itemsize = BY_NUMBER[datatype].itemsize if datatype in BY_NUMBER else 0
        self.elements = None if -1 in self.dims else prod(self.dims)

    def __repr__(self) -> str:
        return f"<TensorSignature {self.name!r} {name_of(self.datatype)} {list(self.dims)}>"


class InputSignature(Protocol):
    """The facts about a model for readers of requests. A `Signature` has them; other processes make their own."""

    @property
    def model(self) -> str: ...

    @property
    def inputs(self) -> dict[str, TensorSignature]: ...

    @property
    def max_batch_size(self) -> int: ...


class Signature:
    """The inputs and outputs of version `version` of model `name`, from its `config` (a protobuf ModelConfig).

    `inputs` and `outputs` are in the order of the configuration. The loader of the model puts the lines of an output's
    label file into `labels`, under the output's name. `correlation_control` is (tensor name, data type number) of the
    sequence batcher's CORRID control, None without. In `memo` a protocol keeps what it has derived from this signature;
    it ends with the version.
    """

    def __init__(self, name: str, version: int, config: Any) -> None:
        self.model = name
        self.version = version
        self.max_batch_size: int = config.max_batch_size
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.inputs = {
            tensor.name: TensorSignature(
                tensor.name,
                tensor.data_type,
                tensor.dims,
                _reshape(tensor),
                bool(tensor.optional),
                self.max_batch_size > 0,
                1 << index,
            )
            for index, tensor in enumerate(config.input)
        }
        self.outputs = {
            tensor.name: TensorSignature(tensor.name, tensor.data_type, tensor.dims, _reshape(tensor))
            for tensor in config.output
        }
        # As upstream, one that is declared twice counts twice, so that no request can be right
        self.required_inputs = sum(not tensor.optional for tensor in config.input)
        # Whether an input holds strings: their bytes must be checked
        self.has_strings = any(tensor.is_bytes for tensor in self.inputs.values())
        self.reshaped_outputs = any(tensor.reshape is not None for tensor in self.outputs.values())
        self.labels: dict[str, list[str]] = {}
        self.correlation_control = _correlation_control(config)
        # Whether the model is given inputs in memory of a GPU as they are
        if card_of(config.backend).reads_on_gpus:
            self.takes_devices = any(group.kind == group.KIND_GPU for group in config.instance_group)
        else:
            force = config.parameters[_FORCE_CPU].string_value if _FORCE_CPU in config.parameters else ""
            self.takes_devices = force == "no"
        # Whether a cache may keep its answers
        self.is_cached: bool = config.response_cache.enable
        self.memo: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Signature {self.model!r} version {self.version}: {list(self.inputs)} -> {list(self.outputs)}>"


def _reshape(tensor: Any) -> Sequence[int] | None:
    # Present but empty means "without any dimension", so presence has to be asked for.
    return list(tensor.reshape.shape) if tensor.HasField("reshape") else None


def _correlation_control(config: Any) -> tuple[str, int] | None:
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            if control.Kind.Name(control.kind) == CORRELATION_ID_CONTROL:
                return tensor.name, control.data_type
    return None
