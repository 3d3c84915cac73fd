"""What a ModelInfer RPC does with a model's responses that no client can tell."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

from stubserve.errors import Code, unavailable
from stubserve.grpc.infer import UnaryInferCall
from stubserve.grpc.infer_decode import split
from stubserve.inference.request import Response


def test_an_error_goes_without_the_garbage_collector() -> None:
    """What a circle kept beside it, the frames of the whole way back among it, was counted by nobody."""
    finished: list[tuple[Any, ...]] = []
    rpc = SimpleNamespace(finish=lambda *status: finished.append(status))
    server = SimpleNamespace(fair_queues=None)
    call = UnaryInferCall(split(b""), cast(Any, None), cast(Any, server), cast(Any, rpc))
    error = unavailable("no instance")
    gone = weakref.ref(error)
    gc.disable()
    try:
        call.respond(cast(Any, None), Response(error=error))
        del error
        assert gone() is None
    finally:
        gc.enable()
    assert finished == [(Code.UNAVAILABLE.grpc_status, "no instance")]
