"""The janitor: ends what models have started when the server is gone, however it went.

A stub dies with the server (the kernel sees to that), but not what its model has started: processes of a pool, servers,
daemons. They cannot be found by their parents any more, for they have got another at that moment. What they keep is the
session that their stub led, unless they have made their own, and a variable of their environment with a mark that is
this server's alone. Everything with one of these is killed, with its descendants, until nothing is left.

It is a program of its own, with nothing but the interpreter (`-I -S`) and no import that is not built in but `os`, so
it has 3 MiB of its own (9 resident) and has started after 10 ms. Its only argument is the mark. On stdin come the
process numbers of stubs, `+1234` and `-1234`, a line each; the end of stdin is the end of the server.
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
    """The processes that live and have the mark or were in a session or group of one of the stubs; with descendants."""
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
            continue  # it has just ended, or is somebody else's
    more = list(found)
    while more:
        for child in children.get(more.pop(), ()):
            if child not in found:
                found.add(child)
                more.append(child)
    return found


def kill_all(processes: "set[int]") -> bool:
    """Kills all of them; whether there were any."""
    for process in processes:
        try:
            os.kill(process, _SIGKILL)
        except OSError:
            continue
    return bool(processes)


if __name__ == "__main__":
    main()
