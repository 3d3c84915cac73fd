"""The options of a request besides its tensors: one description for the parent, the wire, and the stub."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Union

Parameters = Optional[Mapping[str, Any]]


class RequestOptions(NamedTuple):
    """The options of a request, in their order in messages. A new option is one more field here.

    `correlation_id` is 0 or empty for none, `flags` are Triton's for sequences. `priority` and `timeout_us` are 0 where
    the client gave none. `parameters` are those for the model alone; None for none.
    """

    correlation_id: Union[int, str] = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    parameters: Parameters = None


# Most requests have none, and share this.
NO_OPTIONS = RequestOptions()
