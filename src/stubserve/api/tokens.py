"""Bearer tokens (RFC 6750) from a file, and the APIs that each token is good for.

A line of the file is a token, or `sha256:` and the hexadecimal digest of one, so that the file contains no secret.
Behind it may stand the kinds of APIs for which the token is good, separated by commas; without them it is good for all.
Empty lines and lines that begin with `#` are ignored.

The file is read again when it changes. If the new file cannot be read, only the log says so: a mistake in it must
neither let anybody in nor shut everybody out.

A client's token is hashed, and its digest compared with all known digests, each in constant time. So the time of an
answer tells nothing about a token. A correct token is remembered for the next request.
"""

# Compiled by mypyc.
from __future__ import annotations

import hashlib
import hmac
import logging
import re
import string
from pathlib import Path

from stubserve.api.fair_queues import token_of
from stubserve.connections.changing_files import ChangingFiles
from stubserve.errors import Unusable

log = logging.getLogger("stubserve.server")

_DIGEST = "sha256:"
# RFC 6750, §2.1
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
# A token with fewer characters could be guessed by trying.
_MIN_LENGTH = 16

Kinds = frozenset[str]


class AccessTokens:
    """The tokens of a file. `kinds` are all kinds of APIs; `epoch` grows with each reading. Raises Unusable."""

    def __init__(self, path: Path, kinds: Kinds) -> None:
        self._path = path
        self._kinds = kinds
        self.epoch = 1
        # How often the file has changed and could not be used
        self.failures = 0
        self._file = ChangingFiles([str(path)])
        self._digests = read_tokens(path, kinds)
        # The tokens that were correct
        self._right: dict[bytes, Kinds] = {}

    def look(self) -> None:
        """Reads the file again if it has changed."""
        if not self._file.changed():
            return
        try:
            self._digests = read_tokens(self._path, self._kinds)
        except Unusable as error:
            self.failures += 1
            log.error("the tokens stay as they were: %s", error)
            return
        self._right = {}
        self.epoch += 1
        log.info("read %s again: %d tokens", self._path, len(self._digests))

    def kinds_of(self, authorization: bytes) -> Kinds | None:
        """The kinds for which an Authorization header's value is good; None without a known token."""
        token = token_of(authorization)
        if token is None:
            return None
        kinds = self._right.get(token)
        if kinds is not None:
            return kinds
        digest = hashlib.sha256(token).digest()
        for known, good_for in self._digests.items():
            if hmac.compare_digest(known, digest):
                kinds = good_for
        if kinds is not None:
            self._right[token] = kinds
        return kinds


def read_tokens(path: Path, kinds: Kinds) -> dict[bytes, Kinds]:
    """The kinds for each token, by the token's digest. Raises Unusable."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Unusable(f"--auth-token-file={path}: {reason}") from None
    found: dict[bytes, Kinds] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"--auth-token-file={path}, line {number}"
        digest = _digest(words[0])
        if digest is None:
            raise Unusable(
                f"{where}: a token has {_MIN_LENGTH} characters at least, letters, digits and any of -._~+/, or is "
                f"written as {_DIGEST} and 64 hexadecimal digits"
            )
        if digest in found:
            raise Unusable(f"{where}: the same token stands in a line above")
        chosen = [kind for word in words[1:] for kind in word.split(",") if kind]
        for kind in chosen:
            if kind not in kinds:
                raise Unusable(f"{where}: unknown API '{kind}'; there are {', '.join(sorted(kinds))}")
        found[digest] = frozenset(chosen) or kinds
    if not found:
        raise Unusable(f"--auth-token-file={path}: there is no token in it")
    return found


def _digest(word: str) -> bytes | None:
    """The digest of a token as written in the file; None for an invalid word."""
    if word.startswith(_DIGEST):
        digits = word[len(_DIGEST) :]
        right = len(digits) == 2 * hashlib.sha256().digest_size and all(digit in string.hexdigits for digit in digits)
        return bytes.fromhex(digits) if right else None
    if len(word) < _MIN_LENGTH or not _TOKEN.fullmatch(word):
        return None
    return hashlib.sha256(word.encode()).digest()
