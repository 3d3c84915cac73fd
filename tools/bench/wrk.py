"""The load generator wrk: a script for each payload, one run, its figures."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .payloads import Payload

MARK = "bench-result: "

# Where requests differ, they are all made beforehand and sent in turn.
IN_TURN = """
local made, last = {{}}, 0
function init(args)
  for number = 1, {count} do
    local file = assert(io.open({body} .. number, "rb"))
    made[number] = wrk.format(nil, nil, nil, file:read("*a"))
    file:close()
  end
end
function request()
  last = last % {count} + 1
  return made[last]
end
"""

# Whole requests, heads and all, cut out of one file
VERBATIM = """
local made, last = {{}}, 0
function init(args)
  local file = assert(io.open({file}, "rb"))
  for number, size in ipairs({{{sizes}}}) do
    made[number] = file:read(size)
  end
  file:close()
end
function request()
  last = last % {count} + 1
  return made[last]
end
"""

POST = """\
local file = assert(io.open({body}, "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
{headers}
"""

# wrk hands its totals to `done`; times are microseconds.
DONE = """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{mark}{{"requests": %d, "bytes": %.0f, "us": %d, "p50_us": %.0f, "p99_us": %.0f, "longest_us": %.0f, ' ..
    '"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\\n',
    summary.requests, summary.bytes, summary.duration, latency:percentile(50), latency:percentile(99), latency.max,
    e.connect, e.read, e.write, e.status, e.timeout))
end
"""


class LoadError(Exception):
    """Some of the load was refused, lost or wrong, so its figures mean nothing."""


@dataclass(frozen=True)
class Load:
    """What one run of wrk measured."""

    requests: int
    requests_per_s: float
    p50_us: float
    p99_us: float
    # 0 where the load generator does not say
    longest_us: float = field(default=0, kw_only=True)


def available() -> bool:
    return shutil.which("wrk") is not None


def version() -> str:
    """With its name; that there is none, where it is not installed."""
    if not available():
        return "no wrk"
    # wrk prints its version with its usage and then exits with 1.
    shown = subprocess.run(["wrk", "-v"], capture_output=True, text=True)
    return " ".join((shown.stdout + shown.stderr).split()[:2])


def write_script(script: Path, payload: Payload, *others: Payload) -> None:
    """Writes the Lua script that posts `payload`, and the bodies beside it; with `others`, all of them in turn.

    They have the same path and headers.
    """
    body = script.with_suffix(".body")
    body.write_bytes(payload.body)
    headers = "\n".join(f"wrk.headers[{json.dumps(k)}] = {json.dumps(v)}" for k, v in payload.headers.items())
    text = POST.format(body=json.dumps(str(body)), headers=headers) + DONE.format(mark=MARK)
    if others:
        for number, each in enumerate((payload, *others), 1):
            assert (each.path, each.headers) == (payload.path, payload.headers)
            Path(f"{body}{number}").write_bytes(each.body)
        text += IN_TURN.format(body=json.dumps(str(body)), count=1 + len(others))
    script.write_text(text)


def write_verbatim(script: Path, requests: Sequence[bytes]) -> None:
    """Writes the Lua script that sends these requests, each with its own head, in turn, and their bytes beside it."""
    file = script.with_suffix(".requests")
    file.write_bytes(b"".join(requests))
    sizes = ",".join(str(len(request)) for request in requests)
    text = VERBATIM.format(file=json.dumps(str(file)), sizes=sizes, count=len(requests))
    script.write_text(text + DONE.format(mark=MARK))


def run(port: int, script: Path, payload: Payload, connections: int, seconds: int, scheme: str = "http") -> Load:
    """Posts `payload` over `connections` connections from one thread; raises LoadError unless all went well."""
    return run_script(port, script, connections, seconds, payload.path, payload.shortest_answer, scheme)


def run_script(
    port: int,
    script: Path,
    connections: int,
    seconds: int,
    path: str = "/",
    shortest_answer: int = 0,
    scheme: str = "http",
) -> Load:
    """Sends what the script says over `connections` connections from one thread. Raises LoadError as `parse` does."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
    command.append(f"{scheme}://127.0.0.1:{port}{path}")
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise LoadError(f"wrk exited with {finished.returncode}: {finished.stderr[-500:]}")
    return parse(finished.stdout, shortest_answer)


def parse(output: str, shortest_answer: int) -> Load:
    """The figures in wrk's output.

    Raises LoadError for a request that failed (no connection, broken, timed out, status of 400 or more), for no request
    at all, and for answers that are shorter on average than `shortest_answer` bytes.
    """
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        raise LoadError(f"wrk printed no result: {output[-500:]!r}")
    figures = json.loads(lines[-1][len(MARK) :])
    failures = {kind: figures[kind] for kind in ("connect", "read", "write", "status", "timeout") if figures[kind]}
    if failures:
        raise LoadError(
            f"{failures} of {figures['requests']} requests failed ('status' counts answers of 400 and more)"
        )
    if figures["requests"] == 0:
        raise LoadError("no request was answered in the time given: raise --seconds")
    if figures["bytes"] < figures["requests"] * shortest_answer:
        length = figures["bytes"] / figures["requests"]
        raise LoadError(f"answers have {length:.0f} bytes on average, right ones at least {shortest_answer}")
    return Load(
        requests=figures["requests"],
        requests_per_s=figures["requests"] / figures["us"] * 1e6,
        p50_us=figures["p50_us"],
        p99_us=figures["p99_us"],
        longest_us=figures["longest_us"],
    )
