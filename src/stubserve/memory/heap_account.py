"""One account for what requests keep in the parent's own heap, beside the arena.

A tensor lies in the arena, which has a limit. An id, JSON text, a decompressed body, parameters, or an answer that
waits for its reader lies in the parent's heap. A client could send enough of them to fill the machine's memory. So
these bytes are committed in the arena's own ledger: tensors and heap together never pass `--shm-limit`, and stubs see
what is left for their outputs.

The usual request costs nothing: a holder counts only what it keeps beyond FREE_BYTES. An entry costs about 2 µs.
Not thread-safe: the account belongs to the event loop.
"""

# Compiled by mypyc.
from __future__ import annotations

from typing import Protocol

FREE_BYTES = 8 * 1024
# The most bytes of a request beside its tensors: id, names, parameters. They pass the event loop and a stub's ring in
# one piece, so more would delay all other requests, however they are counted.
MAX_WORDS_BYTES = 1 << 20
_WORDS = "its id, names and parameters may have %d bytes together"
WORDS_TEXT = f"the request says too much beside its tensors: {_WORDS % MAX_WORDS_BYTES}"


class SharedLedger(Protocol):
    """The server's ledger of committed bytes. `commit` raises ServeError (503)."""

    def commit(self, nbytes: int) -> None: ...

    def uncommit(self, nbytes: int) -> None: ...


class HeapAccount:
    """The bytes that all requests together keep in the heap: `taken`."""

    def __init__(self, ledger: SharedLedger) -> None:
        self._ledger = ledger
        self.taken = 0

    def take(self, nbytes: int) -> None:
        """Counts `nbytes` more. Raises ServeError (503) that names --shm-limit and the holders of the memory."""
        self._ledger.commit(nbytes)
        self.taken += nbytes

    def give_back(self, nbytes: int) -> None:
        """Counts `nbytes` less; `take` has counted them."""
        self._ledger.uncommit(nbytes)
        self.taken -= nbytes

    def share(self) -> HeapShare:
        """An empty share, for one request or message."""
        return HeapShare(self)


class HeapShare:
    """The bytes of one request or message. The share grows with `add`; `drop` gives all of it back."""

    __slots__ = ("_account", "_counted", "_kept")

    def __init__(self, account: HeapAccount) -> None:
        self._account = account
        self._kept = 0
        self._counted = 0

    def add(self, nbytes: int) -> None:
        """Keeps `nbytes` more. The first FREE_BYTES are not counted. Raises ServeError (503) and adds nothing."""
        kept = self._kept + nbytes
        if kept > FREE_BYTES:
            self._account.take(kept - self._counted)
            self._counted = kept
        self._kept = kept

    def drop(self) -> None:
        """Gives the whole share back. May be called again."""
        if self._counted:
            self._account.give_back(self._counted)
            self._counted = 0
        self._kept = 0
