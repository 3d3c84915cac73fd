"""The benchmark's ONNX models behind BentoML: `with_bentoml.py --repository DIR --batch-from N --port P`.

Each model is a service of its own with one worker, what BentoML's runners have become: its batches are formed by
BentoML's adaptive dispatcher. In front of them is a service that takes bodies as bytes, with FastAPI mounted into it as
BentoML's documentation has it; its own readers know JSON and forms only.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import bentoml
import functions
import numpy
from bentoml.validators import DType
from fastapi import FastAPI, Request, Response

REPOSITORY = "BENCH_REPOSITORY"
# The dispatcher refuses requests that it expects to take longer.
LONGEST_WAIT_MS = 60_000
Floats = Annotated[numpy.ndarray, DType("float32")]
SETTINGS = {"workers": 1, "traffic": {"timeout": LONGEST_WAIT_MS // 1000}, "logging": {"access": {"enabled": False}}}

app = FastAPI()


def runner(route, function, max_batch_size):
    """The service of one model. It is found by its name in this module, in whose process it runs."""

    class Runner:
        @bentoml.api(batchable=True, max_batch_size=max_batch_size, max_latency_ms=LONGEST_WAIT_MS)
        def infer(self, rows: Floats) -> Floats:
            return numpy.stack(function(list(rows)))

    Runner.__name__ = Runner.__qualname__ = f"Runner_{route}"
    return bentoml.service(Runner, **SETTINGS)


def add(route, decode, encode):
    @app.post(f"/{route}")
    async def infer(request: Request) -> Response:
        front = bentoml.get_current_service()
        row = decode(await request.body())
        (answer,) = await getattr(front, route).to_async.infer(row[numpy.newaxis])
        return Response(encode(answer), media_type="application/octet-stream")


def service(repository):
    runners = {}
    for route, (decode, encode), function, max_batch_size, _ in functions.served(repository, 1):
        if isinstance(function, functions.Onnx):
            made = globals()[f"Runner_{route}"] = runner(route, function, max_batch_size)
            runners[route] = bentoml.depends(made)
            add(route, decode, encode)
    front = type("Front", (), {**runners, "__module__": __name__})
    return bentoml.service(bentoml.asgi_app(app)(front), **SETTINGS)


if __name__ == "__main__":
    options = functions.arguments()
    os.environ[REPOSITORY] = str(Path(options.repository).absolute())
    os.environ["BENTOML_DO_NOT_TRACK"] = "true"
    command = [sys.executable, "-m", "bentoml", "serve", "with_bentoml:Front"]
    command += ["--working-dir", str(Path(__file__).parent), "--host", "127.0.0.1", "--port", str(options.port)]
    os.execv(sys.executable, command)
else:
    Front = service(os.environ[REPOSITORY])
