"""What a server keeps: what its C library and Python have given out, or what is resident and anonymous if that is less.

A leak is in both. All that is resident has the pages of the arena that were touched so far (RssShmem), too; heaps stay
as large as they had to be at most, where they cannot give back a whole page; and buffers may be allocated of which
hardly anything was touched. So a thread, which the server's interpreter starts before the server, gives back what its C
library has free, and says what is in use. What only Python's collector can free is in use until it has.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tools.bench.processes import MIB, rss_anon

_SOCKET = "STUBSERVE_CHAOS_MEMORY"
# Python counts blocks, of 16 to 512 bytes; these are about as large as blocks are on average.
_BLOCK_BYTES = 64
# Runs in each interpreter that has its folder on the path; stubs do not get the variable. glibc has mallinfo2 from 2.33
# on; without it the answer is empty.
_TELLS = f"""\
import os

path = os.environ.pop("{_SOCKET}", "")
if path:
    import ctypes
    import socket
    import sys
    import threading

    class Facts(ctypes.Structure):
        NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

    library = ctypes.CDLL(None)
    mallinfo = getattr(library, "mallinfo2", None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        while True:
            connection, _ = listener.accept()
            with connection:
                if mallinfo is not None:
                    library.malloc_trim(0)
                    mallinfo.restype = Facts
                    facts = mallinfo()
                    in_use = facts.uordblks + facts.hblkhd + {_BLOCK_BYTES} * sys.getallocatedblocks()
                    connection.sendall(b"%d" % in_use)

    threading.Thread(target=serve, daemon=True).start()
"""


class Kept:
    """Of one server, which is started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "memory")
        (folder / "sitecustomize.py").write_text(_TELLS)
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        self.environment = {"PYTHONPATH": path, _SOCKET: self._socket}

    def mib(self, pid: int) -> float:
        """Raises OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(self._socket)
            answer = connection.recv(100)
        anonymous = rss_anon(pid)
        return min(anonymous, int(answer or anonymous)) / MIB
