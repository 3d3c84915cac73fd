"""A `generate` call whose client goes at an awkward moment."""

from __future__ import annotations

import asyncio
import json
from math import prod
from typing import Any, cast

import pytest
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.errors import invalid
from stubserve.http.generate import GenerateCall, InPieces, generate
from stubserve.http.generate_encode import document_steps, encode_document
from stubserve.http.infer_encode import in_heap
from stubserve.http.message import RequestHead
from stubserve.inference.long_work import finish
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import ModelTracing
from stubserve.memory.heap_account import HeapAccount
from stubserve.model_config.proto import ModelConfig
from tests.inference.models import echo, request


class Quick:
    """A model that answers before anybody can ask for anything else."""

    signature = Signature("quick", 1, ModelConfig(name="quick"))

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def submit(self, request: Request) -> None:
        request.on_response(request, Response(error=invalid("no")))


class Nowhere:
    """Memory that nobody needs."""

    store = None
    http_forwarding = None
    heap = HeapAccount(cast(Any, None))


def test_a_client_that_goes_when_its_answer_is_there() -> None:
    async def call() -> bytes:
        call = GenerateCall(cast(Any, Quick()), RequestHead(), cast(Any, Nowhere()), streamed=False)
        call.start(b"{}")
        call.cancel()
        return b"".join(cast(InPieces, await generate(call)).pieces)

    assert asyncio.run(call()) == b""


@pytest.mark.parametrize("output", ["OUT", "A", "id", "model_name", "model_version", "100%", "%(id)b", '"', "größe"])
@pytest.mark.parametrize("id", ["", "7", '%s"'])
@pytest.mark.parametrize("shape", [(1,), (2, 1), (0,)])
def test_one_output_is_written_at_once_as_in_steps(output: str, id: str, shape: tuple[int, ...]) -> None:
    model = echo("m%s", "FP32", "-1")
    response = Response([Tensor(output, BY_NAME["FP32"].number, shape, bytes(4 * prod(shape)))])
    asked = request(id=id)
    whole = encode_document(asked, response, model)
    assert whole == b"".join(finish(document_steps(asked, response, model, in_heap)))
    assert output in json.loads(whole)
