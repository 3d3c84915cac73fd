"""The load generator h2load, which nghttp2 brings: gRPC through TLS, and calls with metadata of their own.

For all other gRPC there is a client that is the same on every machine (`http2_client`); it speaks no TLS, which in
Python would cost more than what is to be measured.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .wrk import LoadError

_RATE = re.compile(r"finished in [^,]+, ([0-9.]+) req/s")
_COUNTS = re.compile(r"requests: (\d+) total, .* (\d+) succeeded, .*\n?status codes: (\d+) 2xx")
_DATA = re.compile(r"\((\d+)\) data")


def available() -> bool:
    return shutil.which("h2load") is not None


def run(
    url: str, message: Path, connections: int, requests: int, shortest: int, metadata: Mapping[str, str] | None = None
) -> float:
    """Makes unary calls with the message in the file, and gives the calls per second. Raises LoadError as `parse` does.

    Each connection has one call at a time. Certificates are not checked.
    """
    fields = {"te": "trailers", "content-type": "application/grpc", **(metadata or {})}
    command = ["h2load", f"--requests={requests}", f"--clients={connections}", f"--data={message}"]
    command += [f"--header={name}: {value}" for name, value in fields.items()]
    finished = subprocess.run([*command, url], capture_output=True, text=True)
    if finished.returncode != 0:
        raise LoadError(f"h2load exited with {finished.returncode}: {finished.stderr[-500:]}")
    return parse(finished.stdout, shortest)


def parse(output: str, shortest: int) -> float:
    """The calls per second in h2load's output.

    Raises LoadError for a call that failed, and for answers that are shorter on average than `shortest` bytes, as they
    are where a call is refused.
    """
    rate, counts, data = (pattern.search(output) for pattern in (_RATE, _COUNTS, _DATA))
    if rate is None or counts is None or data is None:
        raise LoadError(f"h2load printed no result: {output[-500:]!r}")
    total, succeeded, good = map(int, counts.groups())
    if not 0 < total == succeeded == good:
        raise LoadError(f"{total} calls, of which {succeeded} were answered, and {good} with 200")
    if int(data[1]) < total * shortest:
        raise LoadError(f"answers have {int(data[1]) / total:.0f} bytes on average, right ones at least {shortest}")
    return float(rate[1])
