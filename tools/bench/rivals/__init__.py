"""What a Python user would serve a model with instead: mosec, litserve, FastAPI with uvicorn, BentoML.

Each runs in the environment that tools/rivals.sh makes, from one small program here, with the settings that its own
documentation recommends for production. They do the same work on the same values, but their protocol carries less: the
body is the bare tensor (bytes, JSON numbers, or msgpack for strings), without the names, shapes and types of KServe v2.

Each row takes the better of what a rival offers: `batch_from` is the number of connections from which its batching
beat one request at a time when it was measured for this choice. litserve sleeps (SIGSTOP) while others are measured,
because its worker that waits for a batch asks its queue a thousand times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack

from ..payloads import Form, Payload, Sample, WrongAnswerError, float_bytes, halves, texts
from ..servers import Program, ServerError

FOLDER = Path(__file__).parent
LARGEST_BODY = 64 << 20
PACKAGES = [
    "mosec",
    "litserve",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "pyzmq",
    "orjson",
    "msgpack",
    "onnxruntime",
    "bentoml",
]


@dataclass(frozen=True)
class PlainPayload(Payload):
    """The bare tensor in the body, there and back, on a route of its own."""

    @property
    def path(self) -> str:
        return f"/{self.model}"

    def check(self, body: bytes, json_length: str | None) -> None:
        right = body == self.echo if isinstance(self.echo, bytes) else json.loads(body) == self.echo
        if not right:
            raise WrongAnswerError(f"{self.path}: the answer is not what was sent: {body[:300]!r}")


@dataclass(frozen=True)
class Rival:
    """How one rival is started. The words in `arguments` are Program's, without the interpreter and the program."""

    name: str
    package: str
    arguments: tuple[str, ...]
    ready_path: str
    batch_from: int
    setting: str
    lacks: str
    polls: bool = False
    onnx: bool = True
    only_onnx: bool = False


RIVALS = [
    Rival(
        "mosec",
        "mosec",
        (
            *("with_mosec.py", "--repository", "REPO", "--address", "127.0.0.1", "--port", "HTTP"),
            *("--log-level", "warning", "--max-request-size", str(LARGEST_BODY)),
        ),
        ready_path="/",
        batch_from=64,
        setting="a front in Rust and a process per worker; batches of up to 64 wait 1 ms, the least it accepts, so "
        "rows with fewer connections use workers that take one request at a time, which is faster there",
        lacks="KServe v2, so no perf_analyzer and no Triton client; shared memory, so a tensor is copied over a Unix "
        "socket to its worker and back; bodies over 10 MiB without a flag; models from a repository",
        # A worker is a class of the program's, not an object that knows its file.
        onnx=False,
    ),
    Rival(
        "litserve",
        "litserve",
        ("with_litserve.py", "--repository", "REPO", "--port", "HTTP", "--api-servers", "2"),
        ready_path="/health",
        batch_from=64,
        setting="`fast_queue` (ZeroMQ) and 2 API servers; `batch_timeout` of 1 ms, as 0 keeps a core busy with "
        "waiting; rows with fewer than 64 connections use workers that take one request at a time, which is no "
        "slower there; bodies come as bytes through a FastAPI dependency, as its own readers know JSON and forms only",
        lacks="KServe v2; shared memory: a request is pickled into the queue of a multiprocessing manager and its "
        "answer into ZeroMQ; rest, as a worker that batches asks its queue every millisecond; models from a repository",
        polls=True,
    ),
    Rival(
        "fastapi",
        "fastapi",
        ("with_fastapi.py", "--repository", "REPO", "--port", "HTTP"),
        ready_path="/health",
        batch_from=16,
        setting="uvicorn with uvloop, httptools and one worker; an asyncio queue for each model, batches of what "
        "waits without waiting for more, the model in a thread",
        lacks="KServe v2; batching, which is the user's own code here; a process for each model, so one that crashes "
        "or holds the interpreter's lock stops all, and all share one environment; models from a repository",
    ),
    Rival(
        "bentoml",
        "bentoml",
        ("with_bentoml.py", "--repository", "REPO", "--port", "HTTP"),
        ready_path="/readyz",
        batch_from=16,
        setting="a service for each model, of one worker and with BentoML's adaptive batches, behind a service that "
        "takes bodies as bytes through a mounted FastAPI application; access logs off; ONNX models only, as each model "
        "more is a process of 100 MB more",
        lacks="KServe v2; shared memory: a tensor is pickled and sent to its model's process by HTTP over a Unix "
        "socket; models from a repository",
        only_onnx=True,
    ),
]


def rivals_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("RIVALS_DIR") or f"{cache}/stubserve-rivals")


def program(rival: Rival) -> Program:
    """Raises ServerError when the rivals are not installed."""
    python = rivals_folder() / "bin" / "python"
    if not python.is_file():
        raise ServerError(f"no {python}: install the rivals with tools/rivals.sh, or name their folder in RIVALS_DIR")
    script, *arguments = rival.arguments
    batching = ("--batch-from", str(rival.batch_from))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Program(
        rival.name,
        (str(python), str(FOLDER / script), *arguments, *batching),
        str(python),
        environment,
        ready_path=rival.ready_path,
        payload=payload_maker(rival),
        package=rival.package,
        polls=rival.polls,
        onnx=rival.onnx,
        only_onnx=rival.only_onnx,
    )


def payload_maker(rival: Rival) -> Callable[[Sample], Payload]:
    def make(sample: Sample) -> Payload:
        payload = plain(sample)
        # One route for the JSON and string rows, two for the bytes: functions.py has the same rule.
        if sample.model == "identity_fp32" and sample.form is Form.FLOATS and sample.connections < rival.batch_from:
            return replace(payload, model=f"{sample.model}_single")
        return payload

    return make


def plain(sample: Sample) -> PlainPayload:
    if sample.form is Form.JSON:
        values = halves(sample.count)
        body = json.dumps(values).encode()
        return PlainPayload(f"{sample.model}_json", {"Content-Type": "application/json"}, body, values)
    if sample.form is Form.STRINGS:
        packed: bytes = msgpack.packb(texts(sample.count))
        return PlainPayload(sample.model, {"Content-Type": "application/msgpack"}, packed, packed)
    raw = float_bytes(sample.count)
    return PlainPayload(sample.model, {"Content-Type": "application/octet-stream"}, raw, raw)


def version(package: str) -> str:
    return _python("import sys, importlib.metadata as m; print(m.version(sys.argv[1]))", package)


def versions() -> str:
    """Names and versions of what matters among the rivals' packages, as one line."""
    code = "import sys, importlib.metadata as m; print(', '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    return _python(code, *PACKAGES)


def _python(code: str, *arguments: str) -> str:
    command = [str(rivals_folder() / "bin" / "python"), "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
