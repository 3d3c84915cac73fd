"""What an option costs a small request: a server that has it beside the same without it.

That is about as much as a machine changes by from one second to the next, and less than two processes of the same
program may differ by, as their memory lies elsewhere. So both servers live side by side and are asked by turns, a
quarter of a second each: without, with, with, without. Compared is the processor time that the server's first process
takes for a request, which others' work on the machine changes less than the rate; such four turns give one figure, and
the median of many counts. For TLS it is the rates that are compared.

`python -m tools.bench.costs [--pairs N] [--fours N] [--only REGEX] [--python PATH]` does that with several pairs of
servers one after the other, and shows the interval that holds 95 of 100 medians of as many figures drawn from those
that were measured. The first row compares a server with itself: what it shows is what this way cannot tell apart. On a
machine that has other work too `--instructions` tells more: it counts instead (`instructions`).
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Protocol

from . import cached, h2load, in_step, instructions, payloads, wrk
from .payloads import Form, Sample
from .servers import Program, Server, stubserve
from .streaming import KServeOnly, service_pb2
from .workloads import Figures, Metric, Subject

COST = Metric("CPU of the parent, % on top", False)
SHARE = Metric("requests/s, share of plain", True)

MODEL = "identity_fp32"
FLOATS = 16
CONNECTIONS = 16
# In one turn
REQUESTS = 4000
RATED_REQUESTS = 20_000
COUNTED_REQUESTS = 800
# How many heads differ: more than a server remembers
HEADS = 4096
WITHOUT_WITH = (0, 1, 1, 0)

_TOKEN = "a-token-that-is-long-enough"
_KEY = "sesame"
_GUARDED = "metadata,inference,model-repository,logging"
_PATH = "/inference.GRPCInferenceService/ModelInfer"
_SAMPLES = 2000


class Asking(Protocol):
    """How a server is asked. `metric` is COST or SHARE."""

    metric: Metric

    def turn(self, server: Server, secure: bool) -> float:
        """One turn: seconds of processor time, or of the clock, for a request."""

    def ask(self, server: Server, requests: int) -> None:
        """Asks, and measures nothing."""


class HttpInStep:
    """HTTP, always the same request, or with heads that differ."""

    metric = COST

    def __init__(self, own_heads: bool = False) -> None:
        self._requests = cycle([_request(number) for number in range(HEADS if own_heads else 1)])

    def turn(self, server: Server, secure: bool) -> float:
        return _processor_time(server, self)

    def ask(self, server: Server, requests: int) -> None:
        in_step.run(server.http_port, self._requests, CONNECTIONS, requests)


class GrpcCalls:
    """gRPC, for either."""

    def __init__(self, folder: Path, metric: Metric) -> None:
        self.metric = metric
        self._message = folder / "message"
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, FLOATS])
        request.raw_input_contents.append(payloads.float_bytes(FLOATS))
        body = request.SerializeToString()
        self._message.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)

    def turn(self, server: Server, secure: bool) -> float:
        if self.metric is SHARE:
            return 1 / self._run(server, secure, RATED_REQUESTS)
        return _processor_time(server, self)

    def ask(self, server: Server, requests: int) -> None:
        self._run(server, False, requests)

    def _run(self, server: Server, secure: bool, requests: int) -> float:
        url = f"http{'s' * secure}://127.0.0.1:{server.grpc_port}{_PATH}"
        metadata = {"authorization": f"Bearer {_TOKEN}", "triton-grpc-protocol-x-key": _KEY}
        return h2load.run(url, self._message, CONNECTIONS, requests, 4 * FLOATS, metadata)


class HttpRate:
    """HTTP, as many requests as wrk can send."""

    metric = SHARE

    def __init__(self, folder: Path) -> None:
        self._payload = payloads.kserve(Sample(MODEL, Form.FLOATS, FLOATS, CONNECTIONS))
        self._script = folder / "rate.lua"
        wrk.write_script(self._script, self._payload)

    def turn(self, server: Server, secure: bool) -> float:
        scheme = f"http{'s' * secure}"
        return 1 / wrk.run(server.http_port, self._script, self._payload, CONNECTIONS, 1, scheme).requests_per_s

    def ask(self, server: Server, requests: int) -> None:
        raise NotImplementedError("a rate is not counted in instructions")


@dataclass(frozen=True)
class Option:
    """An option, the flags that it is chosen by, and how a server is asked; both may put files into the folder given.

    Options of the same `repository` have the same flags.
    """

    name: str
    repository: str
    flags: Callable[[Path], tuple[str, ...]]
    asking: Callable[[Path], Asking]

    @property
    def secure(self) -> bool:
        """Whether it is TLS; then rates are compared."""
        return self.repository == "tls"


def four(option: Option, asking: Asking, servers: Sequence[Server]) -> float:
    """The figure of four turns: per cent on top, or the share of the rate."""
    spent: tuple[list[float], list[float]] = ([], [])
    for which in WITHOUT_WITH:
        spent[which].append(asking.turn(servers[which], option.secure and which == 1))
    return compared(asking.metric, *spent)


def compared(metric: Metric, without: Sequence[float], with_it: Sequence[float]) -> float:
    """The figure of the times that requests took."""
    return sum(without) / sum(with_it) if metric is SHARE else (sum(with_it) / sum(without) - 1) * 100


class OptionCost(KServeOnly):
    """The row of an option in the benchmark: as many fours as fit into twice the seconds, and their median."""

    large = False

    def __init__(self, option: Option) -> None:
        self.name = f"cost of {option.name}"
        self._option = option
        self._asking: Asking | None = None

    def serves(self, program: Program) -> bool:
        return super().serves(program) and program.name != "triton"

    def prepare(self, subject: Subject) -> None:
        self._asking = self._option.asking(subject.workspace)
        four(self._option, self._asking, self._servers(subject))

    def measure(self, subject: Subject, seconds: int) -> Figures:
        assert self._asking is not None
        figures = []
        until = time.monotonic() + 2 * seconds
        while not figures or time.monotonic() < until:
            figures.append(four(self._option, self._asking, self._servers(subject)))
        return {self._asking.metric: statistics.median(figures)}

    def _servers(self, subject: Subject) -> tuple[Server, Server]:
        return (
            subject.serving("plain", write_model),
            subject.serving(self._option.repository, write_model, self._option.flags(subject.workspace)),
        )


def write_model(folder: Path) -> None:
    cached.write_models(folder, "")


def interval(figures: Sequence[float]) -> tuple[float, float]:
    """What holds 95 of 100 medians of as many figures drawn from these."""
    draw = random.Random(len(figures))
    medians = [statistics.median(draw.choices(figures, k=len(figures))) for _ in range(_SAMPLES)]
    cuts = statistics.quantiles(medians, n=40)
    return cuts[0], cuts[-1]


def all_options(installed: bool = True) -> list[Option]:
    """All options. With `installed`, only those that have their load generators here."""
    found = [
        Option("nothing", "control", lambda _: (), lambda _: HttpInStep()),
        Option("tracing at 1 %", "traced", _tracing, lambda _: HttpInStep()),
        Option("tokens, restricted APIs and limits", "guarded", _access, lambda _: HttpInStep()),
        Option("tokens, restricted APIs and limits, heads differ", "guarded", _access, lambda _: HttpInStep(True)),
    ]
    if wrk.available() or not installed:
        found.append(Option("TLS", "tls", _tls, HttpRate))
    if h2load.available() or not installed:
        found += [
            Option(
                "tokens, restricted APIs and limits, gRPC", "guarded", _access, lambda folder: GrpcCalls(folder, COST)
            ),
            Option("TLS, gRPC", "tls", _tls, lambda folder: GrpcCalls(folder, SHARE)),
        ]
    return found


def all_loads(installed: bool = True) -> list[OptionCost]:
    return [OptionCost(option) for option in all_options(installed)]


def _processor_time(server: Server, asking: Asking) -> float:
    processes = server.processes()
    before = processes.parent_cpu_seconds()
    asking.ask(server, REQUESTS)
    return (processes.parent_cpu_seconds() - before) / REQUESTS


def _request(number: int) -> bytes:
    """A whole request. Heads differ in one value, in how names are spelled, and in which field comes first."""
    sample = payloads.kserve(Sample(MODEL, Form.FLOATS, FLOATS, CONNECTIONS))
    fields = {**sample.headers, "Authorization": f"Bearer {_TOKEN}", "X-Key": _KEY, "X-Number": f"{number:06d}"}
    spell = (str, str.lower, str.upper)[number % 3]
    lines = [f"{spell(name)}: {value}\r\n" for name, value in fields.items()]
    first = number % len(lines)
    head = "".join(lines[first:] + lines[:first])
    size = f"Content-Length: {len(sample.body)}"
    return f"POST {sample.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}{size}\r\n\r\n".encode() + sample.body


def _tracing(folder: Path) -> tuple[str, ...]:
    file = f"triton,file={folder / 'trace.json'}"
    return ("--trace-config=mode=triton", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=100",
            f"--trace-config={file}")  # fmt: skip


def _access(folder: Path) -> tuple[str, ...]:
    tokens = folder / "tokens"
    tokens.write_text(f"{_TOKEN}\n")
    return (
        f"--auth-token-file={tokens}",
        "--auth-open-api=health",
        f"--http-restricted-api={_GUARDED}:X-Key={_KEY}",
        f"--grpc-restricted-protocol={_GUARDED}:x-key={_KEY}",
        "--max-connections=1000",
    )


def _tls(folder: Path) -> tuple[str, ...]:
    import trustme

    certificate = trustme.CA().issue_cert("127.0.0.1")
    key, cert = folder / "key.pem", folder / "cert.pem"
    certificate.private_key_pem.write_to_path(str(key))
    certificate.cert_chain_pems[0].write_to_path(str(cert))
    flags = ["--http-use-ssl=true", f"--http-server-cert={cert}", f"--http-server-key={key}"]
    flags += ["--grpc-use-ssl=true", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]
    return tuple(flags)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.costs", description="Shows what options cost a small request."
    )
    parser.add_argument("--pairs", type=int, default=5, help="pairs of servers for each option (default: %(default)s)")
    parser.add_argument("--fours", type=int, default=10, help="fours of turns with each (default: %(default)s)")
    parser.add_argument("--only", metavar="REGEX", default="", help="only options whose name matches")
    parser.add_argument("--python", type=lambda text: Path(text).absolute(), default=Path(sys.executable))
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions by valgrind, one pair of servers"
    )
    options = parser.parse_args()
    if options.instructions and not instructions.available():
        sys.exit("valgrind is not installed: apt-get install valgrind")
    for option in all_options():
        if not re.search(options.only, option.name):
            continue
        if options.instructions:
            if not option.secure:
                print(_counted(option, options.python), flush=True)
        else:
            figures = [figure for _ in range(options.pairs) for figure in _pair(option, options.python, options.fours)]
            print(_line(option, figures), flush=True)


def _pair(option: Option, python: Path, fours: int) -> Iterator[float]:
    program = stubserve(python)
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as name, ExitStack() as stack:
        folder = Path(name)
        write_model(folder / "models")
        servers = []
        for which, flags in (("without", ()), ("with", option.flags(folder))):
            each = replace(program, arguments=(*program.arguments, *flags))
            servers.append(stack.enter_context(Server(each, folder / "models", folder / f"{which}.log")))
        asking = option.asking(folder)
        four(option, asking, servers)
        for _ in range(fours):
            yield four(option, asking, servers)


def _counted(option: Option, python: Path) -> str:
    """How many instructions a request takes without the option and with it; of three runs of each the least."""
    least = []
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as name:
        folder = Path(name)
        write_model(folder / "models")
        for which, flags in (("without", ()), ("with", option.flags(folder))):
            own = folder / which
            program = instructions.counted(stubserve(python), own)
            program = replace(program, arguments=(*program.arguments, *flags))
            with Server(program, folder / "models", folder / f"{which}.log") as server:
                asking = option.asking(folder)
                asking.ask(server, HEADS)

                def ask(asking: Asking = asking, server: Server = server) -> None:
                    asking.ask(server, COUNTED_REQUESTS)

                least.append(min(instructions.of(server, own, ask) for _ in range(3)) / COUNTED_REQUESTS)
    more = (least[1] / least[0] - 1) * 100
    return f"{option.name:55} {more:8.2f} %   {least[0]:,.0f} and {least[1]:,.0f} instructions"


def _line(option: Option, figures: Sequence[float]) -> str:
    low, high = interval(figures)
    return f"{option.name:55} {statistics.median(figures):8.2f}   95 %: {low:.2f} to {high:.2f}   {len(figures)} fours"


if __name__ == "__main__":
    main()
