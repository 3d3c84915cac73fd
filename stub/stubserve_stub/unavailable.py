"""Names of the public module whose service this release does not offer. Using them says so, in plain words."""

from __future__ import annotations

from typing import NoReturn

from stubserve_stub.exceptions import TritonModelException


def _refuse(what: str) -> NoReturn:
    raise TritonModelException("This release of stubserve does not offer {} yet.".format(what))


class SharedMemory:
    """Upstream's handle to a stub's shared-memory region. Here nothing in a stub has a region to run out of."""

    def free_memory(self) -> NoReturn:
        """Raises TritonModelException."""
        _refuse("the size of a shared-memory region, because it has none")
