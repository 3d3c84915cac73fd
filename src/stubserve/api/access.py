"""Rights to use kinds of APIs, by token or by header.

Tokens are those of `--auth-token-file`. A header that some kinds require is set as in Triton (`--http-restricted-api`,
`--grpc-restricted-protocol`). The kinds are Triton's (health, metadata, inference and so on), and `metrics` for the
metrics port. Rights are checked first: a client without them is not told whether the request is otherwise right.

A program that starts the server for itself may put a secret into the server's environment (OWNER). A request that sends
it as its header Authorization has all rights, so that such a program needs none of its clients' tokens.

A request's credentials decide: all of its headers that some rule needs. Requests with the same credentials have the
same rights, so credentials that were granted a kind of API are remembered, until the tokens change.
"""

# Compiled by mypyc.
from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from stubserve.errors import Code, ServeError

if TYPE_CHECKING:
    from stubserve.api.tokens import AccessTokens

# The kinds that can be restricted, by Triton's names
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
# The kinds that a token can be good for
KINDS = frozenset((*RESTRICTED_KINDS, "metrics"))

AUTHORIZATION = "authorization"
# The variable with the secret of who has started the server. It is removed, so that no model finds it.
OWNER = "STUBSERVE_OWNER"

# A client with a token can spell its header in many ways, so only so many credentials are remembered, and short ones.
_KNOWN = 1024
_KNOWN_LENGTH = 1024

# Gives all values of a request's header, or of a call's metadata; the name is in lower case.
Values = Callable[[str], Collection[bytes]]


class Access:
    """The rules of one protocol: `restricted` has, per kind, the header and the value that it requires.

    `open_kinds` need no token. `restriction` is the error for a client without the header, with a place for its name.
    `credentials` are the names of all headers that decide, in lower case. `owner` is the secret of the program that has
    all rights.
    """

    def __init__(
        self,
        restricted: Mapping[str, tuple[str, str]],
        tokens: AccessTokens | None,
        open_kinds: Collection[str],
        restriction: str,
        owner: bytes = b"",
    ) -> None:
        self._owner = owner
        self._restricted = {
            kind: (name.lower(), value.encode("utf-8", "surrogateescape"), restriction % name)
            for kind, (name, value) in restricted.items()
        }
        self._tokens = tokens
        self._open_kinds = open_kinds
        names = [name for name, _, _ in self._restricted.values()]
        self.credentials = frozenset(names if tokens is None and not owner else [*names, AUTHORIZATION])
        # By kind: the credentials that the tokens of this epoch granted it
        self._granted: dict[str, set[Hashable]] = {}
        self._epoch = 0

    def guards(self, kind: str) -> bool:
        """Whether this kind has any rules."""
        return kind in self._restricted or (self._tokens is not None and kind not in self._open_kinds)

    def credentials_in(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[tuple[str, str | bytes], ...]:
        names = self.credentials
        return tuple([one for one in metadata if one[0] in names])

    def knows(self, kind: str, credentials: Hashable) -> bool:
        """Whether a request with exactly these credentials was granted this kind of API, and still is."""
        tokens = self._tokens
        if tokens is not None:
            tokens.look()
            if tokens.epoch != self._epoch:
                self._epoch = tokens.epoch
                self._granted = {}
        granted = self._granted.get(kind)
        return granted is not None and credentials in granted

    def learn(self, kind: str, credentials: Hashable, values: Values) -> ServeError | None:
        """As `refusal`; if there is none, `knows` is true for these credentials from now on."""
        refusal = self.refusal(kind, values)
        # Requests without credentials may come from different clients.
        if refusal is None and credentials and len(repr(credentials)) <= _KNOWN_LENGTH:
            granted = self._granted.setdefault(kind, set())
            if len(granted) >= _KNOWN:
                granted.clear()
            granted.add(credentials)
        return refusal

    def refusal(self, kind: str, values: Values) -> ServeError | None:
        """Why a request with these headers may not use an API of this kind."""
        owner, tokens = self._owner, self._tokens
        if owner and any(hmac.compare_digest(owner, one) for one in values(AUTHORIZATION)):
            return None
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
