"""The janitor: ends the processes that models have started, once the server is gone for any reason.

The kernel ends a stub with the server, but not the processes that its model has started: pools, servers, daemons. They
cannot be found by their parents any more, for they have got another parent at that moment. They keep the session that
their stub led, unless they have made their own, and a variable in their environment with this server's mark. All
processes with one of these are killed, with their descendants, until none is left.

It is a program of its own, with only the interpreter (`-I -S`) and `os` besides built-in imports, so it has 3 MiB of
its own (9 resident) and starts in 10 ms. Its only argument is the mark. On stdin come the process numbers of stubs,
`+1234` and `-1234`, a line each; the end of stdin is the end of the server.
"""

import os
import sys
import time

_SIGKILL = 9
_LONGEST_S = 10.0


def main() -> None:
    mark = os.fsencode(sys.argv[1])
    stubs = set()
    rest = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number = int(line[1:])
            if line[:1] == b"+":
                stubs.add(number)
            else:
                stubs.discard(number)
    deadline = time.monotonic() + _LONGEST_S
    while kill_all(find(mark, stubs)) and time.monotonic() < deadline:
        time.sleep(0.01)


def find(mark: bytes, stubs: "set[int]") -> "set[int]":
    """The live processes with the mark, or from a session or group of one of the stubs; with descendants."""
    children: dict[int, list[int]] = {}
    found = set()
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        process = int(name)
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
            if state == b"Z":
                continue
            children.setdefault(int(parent), []).append(process)
            if process in stubs or int(group) in stubs or int(session) in stubs:
                found.add(process)
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.add(process)
        except (OSError, ValueError):
            continue  # the process has just ended, or belongs to another user
    more = list(found)
    while more:
        for child in children.get(more.pop(), ()):
            if child not in found:
                found.add(child)
                more.append(child)
    return found


def kill_all(processes: "set[int]") -> bool:
    for process in processes:
        try:
            os.kill(process, _SIGKILL)
        except OSError:
            continue
    return bool(processes)


if __name__ == "__main__":
    main()
