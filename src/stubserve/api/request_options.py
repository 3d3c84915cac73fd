"""The parameters of a request that mean something to the server, whatever the protocol. All others are the model's."""

from __future__ import annotations

from typing import Any, NamedTuple

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START


class Reserved(NamedTuple):
    """A reserved parameter: the field of `RequestOptions` that it sets, or a flag of it.

    `types` are those that its value may have, as KServe's gRPC calls them.
    """

    option: str
    types: tuple[str, ...]
    flag: int = 0

    def put(self, options: dict[str, Any], value: Any) -> None:
        """Puts its value among the options that have been read."""
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
