"""Rights to use kinds of APIs: by a token (`--auth-token-file`), and by a header that some kinds want, as in Triton
(`--http-restricted-api`, `--grpc-restricted-protocol`).

The kinds are Triton's: health, metadata, inference and so on, and `metrics` for the port of that. What is asked comes
first: a client that may not use an API is not told whether what was asked of it is there, or right.

What decides are a request's credentials: all of its headers that some rule asks for. Requests with the same ones may do
the same, so credentials that were granted a kind of API are known from then on, until the tokens change.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from stubserve.api.tokens import Tokens
from stubserve.errors import Code, ServeError

# What can be restricted, as Triton calls it.
RESTRICTED_KINDS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
# What a token can be good for.
KINDS = frozenset((*RESTRICTED_KINDS, "metrics"))

AUTHORIZATION = "authorization"

# A client with a token can write its header in many ways, and add others to it: so many are known, and only short ones.
_KNOWN = 1024
_KNOWN_LENGTH = 1024

# All values of a request's header, or of a call's metadata, by its name in lower case.
Values = Callable[[str], Collection[bytes]]


class Access:
    """The rules of one protocol: `restricted` has the header and the value that a kind wants.

    `open_kinds` need no token. `restriction` is what a client without the header is told, with a place for its name.
    `credentials` are the names of all headers that decide, in lower case.
    """

    def __init__(
        self,
        restricted: Mapping[str, tuple[str, str]],
        tokens: Tokens | None,
        open_kinds: Collection[str],
        restriction: str,
    ) -> None:
        self._restricted = {
            kind: (name.lower(), value.encode("utf-8", "surrogateescape"), restriction % name)
            for kind, (name, value) in restricted.items()
        }
        self._tokens = tokens
        self._open_kinds = open_kinds
        names = [name for name, _, _ in self._restricted.values()]
        self.credentials = frozenset(names if tokens is None else [*names, AUTHORIZATION])
        # By kinds: the credentials that it was granted to by the tokens of this epoch
        self._granted: dict[str, set[Hashable]] = {}
        self._epoch = 0

    def guards(self, kind: str) -> bool:
        """Whether there is anything to ask about this kind."""
        return kind in self._restricted or (self._tokens is not None and kind not in self._open_kinds)

    def credentials_in(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[tuple[str, str | bytes], ...]:
        """A call's credentials, of its metadata."""
        names = self.credentials
        return tuple([one for one in metadata if one[0] in names])

    def knows(self, kind: str, credentials: Hashable) -> bool:
        """Whether a request with these credentials, all that it has, was granted an API of this kind, and still is."""
        tokens = self._tokens
        if tokens is not None:
            tokens.look()
            if tokens.epoch != self._epoch:
                self._epoch = tokens.epoch
                self._granted = {}
        granted = self._granted.get(kind)
        return granted is not None and credentials in granted

    def learn(self, kind: str, credentials: Hashable, values: Values) -> ServeError | None:
        """As `refusal`; without one `knows` says so from now on."""
        refusal = self.refusal(kind, values)
        # Clients without one may not be told apart from others here.
        if refusal is None and credentials and len(repr(credentials)) <= _KNOWN_LENGTH:
            granted = self._granted.setdefault(kind, set())
            if len(granted) >= _KNOWN:
                granted.clear()
            granted.add(credentials)
        return refusal

    def refusal(self, kind: str, values: Values) -> ServeError | None:
        """Why a request with these headers may not use an API of this kind."""
        tokens = self._tokens
        if tokens is not None and kind not in self._open_kinds:
            tokens.look()
            sent = values(AUTHORIZATION)
            good_for = tokens.kinds_of(next(iter(sent))) if len(sent) == 1 else None
            if good_for is None:
                return ServeError(
                    Code.UNAUTHENTICATED,
                    "This API wants a token that the server knows, as the header 'Authorization: Bearer <token>'",
                )
            if kind not in good_for:
                return ServeError(Code.FORBIDDEN, f"The token is not good for the API '{kind}'")
        restriction = self._restricted.get(kind)
        if restriction is not None:
            name, value, text = restriction
            if not any(hmac.compare_digest(value, one) for one in values(name)):
                return ServeError(Code.RESTRICTED, text)
        return None
