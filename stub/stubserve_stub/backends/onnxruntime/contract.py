"""A session's inputs and outputs as onnxruntime describes them."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from stubserve_stub.backends.contract import Contract
from stubserve_stub.backends.loading import TensorInfo
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BF16, BY_NAME, BY_NUMBER, BYTES

_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}
_BFLOAT16 = 16  # in onnx.TensorProto.DataType
# The types as which onnxruntime binds memory, by the number of the data type
ELEMENT_TYPES: Dict[int, Any] = {
    number: _BFLOAT16 if number == BF16 else kind.numpy for number, kind in BY_NUMBER.items() if number != BYTES
}


def contract_of(session: Any) -> Contract:
    """Raises Refusal for tensors that cannot travel."""
    contract = Contract(
        _infos("input", session.get_inputs()),
        _infos("output", session.get_outputs()),
        _infos("initializer", session.get_overridable_initializers()),
    )
    tensors = (*contract.inputs.values(), *contract.outputs.values(), *contract.initializers.values())
    types = {info.datatype for info in tensors}
    if BF16 in types and any(info.datatype == BYTES for info in contract.inputs.values()):
        raise Refusal("onnxruntime's Python package cannot run a model that has strings as input and BF16 tensors")
    return contract


def _infos(what: str, nodes: Sequence[Any]) -> Dict[str, TensorInfo]:
    infos: List[TensorInfo] = []
    for node in nodes:
        if node.type not in _TYPES:
            raise Refusal(
                f"{what} '{node.name}' is a {node.type}, which has no counterpart among the data types of the server: "
                "only tensors of booleans, integers of 8 to 64 bits, FP16, BF16, FP32, FP64 and strings can be sent"
            )
        dims = [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape or ()]
        infos.append(TensorInfo(node.name, BY_NAME[_TYPES[node.type]].number, dims))
    return {info.name: info for info in infos}


def open_file(path: str) -> Tuple[Contract, Callable[[Mapping[str, Any]], List[Any]]]:
    """What a network takes and gives, and what runs it. Raises ImportError, and whatever onnxruntime raises."""
    onnxruntime = importlib.import_module("onnxruntime")

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    contract = contract_of(session)
    outputs = list(contract.outputs)
    return contract, lambda inputs: session.run(outputs, inputs)
