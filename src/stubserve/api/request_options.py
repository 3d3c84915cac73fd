"""The parameters of a request that mean something to the server, for all protocols. All others go to the model."""

from __future__ import annotations

from typing import Any, NamedTuple

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START


class Reserved(NamedTuple):
    """The field of `RequestOptions` that a parameter sets, or a flag of it; `types` are those of KServe's gRPC."""

    option: str
    types: tuple[str, ...]
    flag: int = 0

    def put(self, options: dict[str, Any], value: Any) -> None:
        """Adds its value to the options read so far."""
        if self.flag:
            value = options.get(self.option, 0) | (self.flag if value else 0)
        options[self.option] = value


RESERVED = {
    "sequence_id": Reserved("correlation_id", ("int64_param", "string_param")),
    "sequence_start": Reserved("flags", ("bool_param",), SEQUENCE_START),
    "sequence_end": Reserved("flags", ("bool_param",), SEQUENCE_END),
    "priority": Reserved("priority", ("int64_param", "uint64_param")),
    "timeout": Reserved("timeout_us", ("int64_param",)),
}
# No parameter may begin so, but for those that a protocol itself has.
PREFIX = "triton_"
