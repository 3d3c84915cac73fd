"""`PreferredMemory`: where a model would like the outputs of a request that it makes itself."""

from __future__ import annotations

from stubserve_stub.api.arguments import INT64_MAX, INT64_MIN, as_integer, incompatible
from stubserve_stub.api.constants import MemoryType


class PreferredMemory:
    """A memory type and, for GPU memory, the device."""

    __slots__ = ("__weakref__", "_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        device_id = as_integer(preferred_device_id, INT64_MIN, INT64_MAX)
        if not isinstance(preferred_memory_type, MemoryType) or device_id is None:
            raise incompatible(
                "__init__",
                "PreferredMemory(preferred_memory_type: MemoryType, preferred_device_id: int = 0)",
                (preferred_memory_type, preferred_device_id),
            )
        self._memory_type = preferred_memory_type
        self._device_id = device_id
