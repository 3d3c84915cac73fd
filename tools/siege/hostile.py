"""The kinds of hostile clients, and the process that is one of them.

`python -m tools.siege.hostile KIND HTTP GRPC GROUP`: each is a process of its own with a low priority (`cores`), so
that what polite clients see is what the server does and not how busy the attackers are. It attacks when its standard
input has a line, ends when that ends, and then prints what it did as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from . import cores, grpc_attacks, http_attacks
from .attack import Attempt, Target, run

END_TIMEOUT_S = 60

# Kind -> attempts, and how many clients make each at the same time
KINDS: dict[str, list[tuple[Attempt, int]]] = {
    "claims": [(http_attacks.claims_and_never_sends, 12), (grpc_attacks.claims_and_never_sends, 2)],
    "trickles": [(http_attacks.trickles, 12), (http_attacks.trickles_heads, 20), (grpc_attacks.trickles, 2)],
    "never-reads": [
        (http_attacks.never_reads, 40),
        (http_attacks.never_reads_a_pipeline, 4),
        (grpc_attacks.never_reads, 4),
    ],
    "gzip-bombs": [(http_attacks.sends_gzip_bombs, 8), (grpc_attacks.sends_gzip_bombs, 4)],
    "long-ids": [(http_attacks.sends_long_ids, 1)],
    "json-bombs": [(http_attacks.sends_json_bombs, 3)],
    "tiny-fields": [
        (grpc_attacks.sends_tiny_fields, 1),
        (grpc_attacks.sends_dimensions, 1),
        (grpc_attacks.sends_zeros_and_resets, 1),
    ],
    "classes": [(http_attacks.asks_for_classes, 2)],
    "floats": [(http_attacks.asks_for_floats, 1), (http_attacks.asks_for_compression, 1)],
    "strings": [(http_attacks.asks_for_strings, 1)],
    "connections": [(http_attacks.opens_connections, 1)],
    "wrong-port": [(http_attacks.speaks_http2_to_http, 10), (http_attacks.speaks_http_to_grpc, 5)],
    "metadata": [(grpc_attacks.sends_much_metadata, 4)],
    "floods": [
        (grpc_attacks.floods_with_settings, 1),
        (grpc_attacks.floods_with_pings, 1),
        (grpc_attacks.floods_with_resets, 1),
        (grpc_attacks.floods_with_empty_data, 1),
        (grpc_attacks.floods_with_window_updates, 1),
    ],
}

# What takes long to make, for those that send it again and again.
MADE_BEFORE: dict[str, tuple[Callable[[], object], ...]] = {
    "gzip-bombs": (http_attacks.long_id, grpc_attacks.bomb),
    "long-ids": (http_attacks.long_id,),
    "json-bombs": (http_attacks.json_bombs,),
    "tiny-fields": (grpc_attacks.tiny_fields, grpc_attacks.dimensions),
}


class Hostile:
    """A process of one kind, in a control group if there is one; a context manager that waits until it can `attack`.

    `tally` tells what it did, at its end.
    """

    def __init__(self, kind: str, http_port: int, grpc_port: int, group: Path | None) -> None:
        self.kind = kind
        self.tally: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.siege.hostile", kind, str(http_port), str(grpc_port), str(group or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Hostile:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def attack(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Has it end. All are told before the first is waited for: they get little of the cores while others attack."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None

    def __exit__(self, *_: object) -> None:
        self.stop()
        try:
            text, _ = self._process.communicate(timeout=END_TIMEOUT_S)
            self.tally = json.loads(text)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    kind, http_port, grpc_port, group = sys.argv[1:]
    if group:
        cores.join(Path(group))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    target = Target(int(http_port), int(grpc_port))
    for make in MADE_BEFORE.get(kind, ()):
        make()
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=run, args=(target, KINDS[kind]), daemon=True).start()
    sys.stdin.read()
    target.stop.set()
    print(json.dumps(dict(target.tally.copy())), flush=True)
    # Whatever its threads wait for: the kernel closes their sockets, as it does for a client that is killed.
    os._exit(0)


if __name__ == "__main__":
    main()
