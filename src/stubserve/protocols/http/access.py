"""Who may use which routes. What a head was once granted, and all its copies, is not looked at again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stubserve.errors import ServeError
from stubserve.protocols.access import Access
from stubserve.protocols.http.head import RequestHead
from stubserve.protocols.tokens import Tokens

INFERENCE = "inference"


def http_access(
    restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
) -> HttpAccess | None:
    """The rules of HTTP; None where there are none."""
    return HttpAccess(restricted, tokens, open_kinds) if restricted or tokens is not None else None


class HttpAccess(Access):
    """The rules of HTTP."""

    def __init__(
        self, restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
    ) -> None:
        super().__init__(restricted, tokens, open_kinds, "This API is restricted, expecting header '%s'")
        self._guards_inference = self.guards(INFERENCE)

    def admits(self, head: RequestHead) -> bool:
        """Whether a request with this head may use inference."""
        if not self._guards_inference:
            return True
        if self._tokens is not None:
            self._tokens.look()
        return head.granted == self._epoch or self.inference_refusal(head) is None

    def inference_refusal(self, head: RequestHead) -> ServeError | None:
        """Why it may not."""
        refusal = self.refusal(INFERENCE, head.values)
        if refusal is None:
            # That of the tokens that it was granted by: a look here could be at others.
            head.granted = self._epoch
        return refusal

    @property
    def _epoch(self) -> int:
        """Grows when what was granted has to be looked at again."""
        return 1 if self._tokens is None else self._tokens.epoch
