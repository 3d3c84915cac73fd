"""What a hit of the response cache costs beside the cheapest request there is, and beside real Triton's cache.

`python -m tools.bench.cached [--seconds S] [--rounds N] [--python PATH] [--alone]`. wrk sends GET /v2/health/live, then
one small request (16 floats) again and again, then requests that differ in their ids from the one before. Shown are
requests per second, and the processor time of the server's first process for each request.

It also shows what the rate limiter costs: the same model, without the cache, with the limiter off and on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from . import payloads, repository, wrk
from .payloads import Form, Payload, Sample
from .servers import Program, Server, peers_environment, stubserve, triton

CONNECTIONS = 16
IDS = 2000
CACHE = "response_cache { enable: true }\n"
LIMIT = (
    'instance_group [ { kind: KIND_CPU count: 1 rate_limiter { resources [ { name: "R" count: 1 } ] priority: 1 } } ]\n'
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.cached", description=__doc__)
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (default: %(default)s)")
    parser.add_argument("--python", type=lambda text: Path(text).absolute(), default=Path(sys.executable))
    parser.add_argument("--alone", action="store_true", help="without real Triton")
    options = parser.parse_args()
    if not wrk.available():
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="bench-cached-") as folder:
        workspace = Path(folder)
        write_models(workspace / "cached", CACHE)
        write_models(workspace / "limited", LIMIT)
        for program, models, loads in runs(options.python, not options.alone):
            with Server(program, workspace / models, workspace / "log") as server:
                for name in loads:
                    measure(program, server, workspace, name, options.rounds, options.seconds)


def write_models(folder: Path, more: str) -> None:
    """One identity model."""
    model = folder / "identity_fp32"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(repository.IDENTITY)
    (model / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 0\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1, -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1, -1 ] } ]\n' + more
    )


def runs(python: Path, with_triton: bool) -> Iterator[tuple[Program, str, tuple[str, ...]]]:
    """Each server, its repository, and what is measured of it."""
    ours = stubserve(python)
    cache = ("--cache-config=local,size=67108864",)
    hits = ("live", "same", "ids")
    yield _with(ours, "stubserve, cache", cache), "cached", hits
    if with_triton:
        caches = f"--cache-directory={peers_environment()['TRITON_HOME']}/caches"
        yield _with(triton(), "triton, cache", (*cache, caches)), "cached", hits
    limit = ("--rate-limit=execution_count",)
    yield _with(ours, "stubserve, limiter off", ()), "limited", ("same", "ids")
    yield _with(ours, "stubserve, limiter on", limit), "limited", ("same", "ids")
    if with_triton:
        yield _with(triton(), "triton, limiter off", ()), "limited", ("same",)
        yield _with(triton(), "triton, limiter on", limit), "limited", ("same",)


def _with(program: Program, name: str, flags: tuple[str, ...]) -> Program:
    return replace(program, name=name, arguments=(*program.arguments, *flags))


def measure(program: Program, server: Server, workspace: Path, name: str, rounds: int, seconds: int) -> None:
    """Prints one row: the median of the rounds."""
    script = workspace / f"{name}.lua"
    sample = payloads.kserve(Sample("identity_fp32", Form.FLOATS, 16, CONNECTIONS))
    path, shortest = sample.path, sample.shortest_answer
    if name == "live":
        script.write_text(wrk.DONE.format(mark=wrk.MARK))
        path, shortest = "/v2/health/live", 0
    elif name == "same":
        payloads.send(server.http_port, sample)
        wrk.write_script(script, sample)
    else:
        wrk.write_verbatim(script, [with_id(sample, number) for number in range(IDS)])
    processes = server.processes()
    wrk.run_script(server.http_port, script, CONNECTIONS, 1, path, shortest)
    rates, costs = [], []
    for _ in range(rounds):
        before = processes.parent_cpu_seconds()
        load = wrk.run_script(server.http_port, script, CONNECTIONS, seconds, path, shortest)
        rates.append(load.requests_per_s)
        costs.append((processes.parent_cpu_seconds() - before) / load.requests * 1e6)
    rate, cost = statistics.median(rates), statistics.median(costs)
    print(f"{program.name:24} {name:5} {rate:10.0f} requests/s {cost:8.1f} µs of the parent", flush=True)


def with_id(payload: Payload, number: int) -> bytes:
    """The request with an id of its own in its JSON."""
    length = int(payload.headers["Inference-Header-Content-Length"])
    json = b'{"id":"request %06d",' % number + payload.body[1:length]
    body = json + payload.body[length:]
    headers = {**payload.headers, "Inference-Header-Content-Length": str(len(json)), "Content-Length": str(len(body))}
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"POST {payload.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode() + body


if __name__ == "__main__":
    main()
