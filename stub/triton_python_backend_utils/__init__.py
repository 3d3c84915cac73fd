"""What a Triton model imports: tensors, requests, responses, errors, the logger and helpers.

The code is in `stubserve_stub`; here are its names for models. It can also be imported outside a server, by unit tests
of a model and by editors.
"""

from __future__ import annotations

# Upstream's module has these three, too, and `from triton_python_backend_utils import *` gives them to a model.
import json
import struct

import numpy as np
from stubserve_stub.api.constants import REQUEST_FLAG_SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
from stubserve_stub.api.constants import REQUEST_FLAG_SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from stubserve_stub.api.constants import REQUEST_RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from stubserve_stub.api.constants import REQUEST_RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from stubserve_stub.api.constants import RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from stubserve_stub.api.constants import MemoryType as _MemoryType
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.logger import Logger
from stubserve_stub.api.metrics import MetricFamily
from stubserve_stub.api.model_config import ModelConfig
from stubserve_stub.api.requests import InferenceRequest, PreferredMemory, get_input_tensor_by_name
from stubserve_stub.api.responses import InferenceResponse, get_output_tensor_by_name
from stubserve_stub.api.server_queries import is_model_ready, load_model, unload_model
from stubserve_stub.api.stacking import stack, unstack
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.api.utils import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_model_dir,
    get_output_config_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)

TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "stack",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "unstack",
    "using_decoupled_model_transaction_policy",
]
