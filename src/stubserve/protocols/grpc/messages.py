"""The messages of `GRPCInferenceService`, as NVIDIA's package has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stubserve.model_config.proto import load_service_pb2

__all__ = ["service_pb2"]

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2
else:
    service_pb2 = load_service_pb2()
