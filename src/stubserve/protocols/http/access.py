"""Who may use which routes. Heads with the same credentials may use the same, so those are looked at once.

A head tells its credentials by itself: all fields that the rules ask for, as they came. Of those that were granted
inference the set is kept until the tokens change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stubserve.errors import ServeError
from stubserve.protocols.access import Access
from stubserve.protocols.http.head import RequestHead
from stubserve.protocols.tokens import Tokens

INFERENCE = "inference"

# Who has a token can write its header in many ways.
_KEPT = 1024


def http_access(
    restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
) -> HttpAccess | None:
    """The rules of HTTP; None where there are none."""
    return HttpAccess(restricted, tokens, open_kinds) if restricted or tokens is not None else None


class HttpAccess(Access):
    """The rules of HTTP. `credentials` are the names of the fields that decide about inference, in lower case."""

    def __init__(
        self, restricted: Mapping[str, tuple[str, str]], tokens: Tokens | None, open_kinds: Collection[str]
    ) -> None:
        super().__init__(restricted, tokens, open_kinds, "This API is restricted, expecting header '%s'")
        self._guards_inference = self.guards(INFERENCE)
        self.credentials = self.names(INFERENCE)
        # What was granted inference by the tokens of this epoch
        self._granted: set[tuple[bytes, ...]] = set()
        self._epoch = 0

    def admits(self, head: RequestHead) -> bool:
        """Whether a request with this head, from a memory that knows of `credentials`, may use inference."""
        if not self._guards_inference:
            return True
        tokens = self._tokens
        if tokens is not None:
            tokens.look()
            if tokens.epoch != self._epoch:
                self._epoch = tokens.epoch
                self._granted.clear()
        return head.credentials in self._granted or self._grant(head)

    def inference_refusal(self, head: RequestHead) -> ServeError | None:
        """Why it may not."""
        return self.refusal(INFERENCE, head.values)

    def _grant(self, head: RequestHead) -> bool:
        if self.inference_refusal(head) is not None:
            return False
        # One that tells none was not asked for them.
        if head.credentials:
            if len(self._granted) >= _KEPT:
                self._granted.clear()
            self._granted.add(head.credentials)
        return True
