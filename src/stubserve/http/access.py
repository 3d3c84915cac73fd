"""Rights to use routes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stubserve.api.access import Access
from stubserve.api.tokens import Tokens
from stubserve.errors import ServeError
from stubserve.http.head import RequestHead

INFERENCE = "inference"


def http_access(
    restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
) -> HttpAccess | None:
    """The rules of HTTP; None where there are none."""
    return HttpAccess(restricted, tokens, open_kinds) if restricted or tokens is not None else None


class HttpAccess(Access):
    """The rules of HTTP. Heads of inference come from a memory that was told which fields are `credentials`."""

    def __init__(
        self, restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
    ) -> None:
        super().__init__(restricted, tokens, open_kinds, "This API is restricted, expecting header '%s'")
        self._guards_inference = self.guards(INFERENCE)

    def admits(self, head: RequestHead) -> bool:
        """Whether a request with this head may use inference."""
        return (
            not self._guards_inference
            or self.knows(INFERENCE, head.credentials)
            or self.learn(INFERENCE, head.credentials, head.values) is None
        )

    def inference_refusal(self, head: RequestHead) -> ServeError | None:
        """Why the request is refused; None where it is not."""
        return self.refusal(INFERENCE, head.values)
