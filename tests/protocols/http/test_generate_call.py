"""A `generate` call whose client goes at an awkward moment."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from stubserve.errors import invalid
from stubserve.inference.heap_account import HeapAccount
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.trace import ModelTracing
from stubserve.model_config.proto import ModelConfig
from stubserve.protocols.http.generate import GenerateCall, generate


class Quick:
    """A model that answers before anybody can ask for anything else."""

    signature = Signature("quick", 1, ModelConfig(name="quick"))

    tracing = ModelTracing()

    def submit(self, request: Request, at_once: bool = False) -> None:
        request.on_response(request, Response(error=invalid("no")))


class Nowhere:
    """Memory that nobody needs."""

    store = None
    heap = HeapAccount(cast(Any, None))


def test_a_client_that_goes_when_its_answer_is_there() -> None:
    async def call() -> bytes:
        call = GenerateCall(cast(Any, Quick()), cast(Any, Nowhere()), streamed=False)
        call.start(b"{}")
        call.cancel()
        return bytes((await generate(call)).body)

    assert asyncio.run(call()) == b""
