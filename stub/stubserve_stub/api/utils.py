"""The helper functions of the public module: names of data types, BYTES blobs, configurations, the model's folder."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.wire.datatypes import BY_NUMBER

_model_dir = ""

# No TYPE_BF16: numpy has no such type.
TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    kind.config_name: kind.numpy.type for kind in BY_NUMBER.values() if kind.numpy is not None
}
_NUMBER_TO_NUMPY = {number: TRITON_STRING_TO_NUMPY.get(kind.config_name) for number, kind in BY_NUMBER.items()}
_NUMPY_TO_NUMBER = [(scalar, number) for number, scalar in _NUMBER_TO_NUMPY.items() if scalar is not None]
_NUMPY_TO_NUMBER.append((np.bytes_, 13))
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a data type as configurations name it. Raises KeyError for others and for TYPE_BF16."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a data type's number, None if there is none."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """The number of a numpy type or dtype, None if there is none; builtin types have none."""
    for scalar, number in _NUMPY_TO_NUMBER:
        if data_type == scalar:
            return number
    return None


def serialize_byte_tensor(input_tensor: np.ndarray) -> Union[bytes, Tuple[()], None]:
    """An array of objects or of `S` strings as a BYTES blob; `()` if it is empty, None for other data types."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.char not in "OS":
        return None
    return bytes_tensor.encode(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: Any) -> np.ndarray:
    """The elements of a BYTES blob, as a one-dimensional array of `bytes`. Raises TritonModelException if malformed."""
    return bytes_tensor.decode_array(encoded_tensor)


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of the input of that name, or None."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The configuration of the output of that name, or None."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Whether the configuration makes the model a decoupled one."""
    if "model_transaction_policy" not in model_config:
        return False
    decoupled: bool = model_config["model_transaction_policy"]["decoupled"]
    return decoupled


def set_model_dir(path: str) -> None:
    global _model_dir
    _model_dir = path


def get_model_dir() -> str:
    """The folder of the model's version, `<repository>/<model>/<version>`."""
    return _model_dir
