"""Batches through the Python backend, with a model that is a function. What it connects to the server is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import Senders
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.python.backend import PythonBackend
from stubserve_stub.backends.python.model import ContractBroken, Model
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.host import Host
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import InArena, Lent

from tests.stub.runtime.stub_memory import StubMemory, stub_memory

FP32 = 11
ARRAY = np.arange(10_000, dtype=np.float32)


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory() as memory:
        yield memory


def python_backend(stub: StubMemory, execute: Callable[[list[Any]], Any], decoupled: bool = False) -> PythonBackend:
    class TritonPythonModel:
        pass

    TritonPythonModel.execute = lambda _, requests: execute(requests)  # type: ignore[attr-defined]
    backend = PythonBackend()
    host = Host("m_0", None)  # type: ignore[arg-type]
    host.channel = stub.channel
    backend.initialize(host)
    backend._instance = InstanceSetup("m_0", {}, ["OUT"], decoupled)
    backend._senders = Senders(stub.channel, decoupled)
    backend._model = Model(TritonPythonModel, "model.py")
    backend._model.initialize({})
    return backend


def batch(stub: StubMemory, *places: Any) -> Batch:
    requests: Any = [("", NO_OPTIONS, None, None, [("IN", FP32, (10_000,), tuple(place))]) for place in places]
    return Batch(stub.channel, 7, requests)


def same(request: Any) -> InferenceResponse:
    return InferenceResponse([Tensor("OUT", request.inputs()[0].as_numpy())])


def test_a_batch(stub: StubMemory) -> None:
    """Nothing of it is alive afterwards, so the memory that it answers with is nobody else's."""
    backend = python_backend(stub, lambda requests: [same(request) for request in requests])
    places = [stub.give(ARRAY.tobytes()) for _ in range(2)]
    work = batch(stub, *places)
    entries = backend.execute(work)
    assert work.computed_ns
    held, prepared = work.prepare_result(entries)
    assert held == []
    assert [entry[1][0][3] for entry in prepared] == [Lent(place[1], place[2], place[1]) for place in places]  # type: ignore[index]


def test_a_request_that_is_kept(stub: StubMemory) -> None:
    kept: list[Any] = []

    def execute(requests: Any) -> Any:
        kept.append(requests[0])
        return [same(request) for request in requests]

    places = [stub.give(ARRAY.tobytes()) for _ in range(2)]
    work = batch(stub, *places)
    held, prepared = work.prepare_result(python_backend(stub, execute).execute(work))
    assert held == [places[0].offset]
    assert [type(entry[1][0][3]) for entry in prepared] == [InArena, Lent]  # type: ignore[index]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1)])
def test_a_batch_that_fails(stub: StubMemory, error: BaseException) -> None:
    """Its inputs are prepared as those of any other, and its senders are ended."""
    kept: list[Any] = []

    def execute(requests: Any) -> Any:
        kept.append(requests[0].inputs()[0].as_numpy()[:1])
        kept.append(requests[1].get_response_sender())
        raise error

    backend = python_backend(stub, execute)
    places = [stub.give(ARRAY.tobytes()) for _ in range(2)]
    work = batch(stub, *places)
    with pytest.raises(type(error)):
        backend.execute(work)
    error.__traceback__ = None
    assert backend._current is None
    assert kept[1]._revoked
    assert work.prepare_result(())[0] == [places[0].offset]


def test_in_a_process_that_the_model_has_forked(stub: StubMemory) -> None:
    """What is open there is a copy of the stub's."""
    senders: list[Any] = []

    def execute(requests: Any) -> Any:
        senders.append(requests[0].get_response_sender())
        backend._process = os.getpid() + 1
        raise SystemExit

    backend = python_backend(stub, execute)
    with pytest.raises(SystemExit):
        backend.execute(batch(stub, stub.give(ARRAY.tobytes())))
    assert not senders[0]._closed
    backend._senders.revoke(7)


def test_requests_that_are_left_to_senders(stub: StubMemory) -> None:
    """Their inputs are not the batch's to speak of any more, whoever holds them."""
    senders: list[Any] = []

    def execute(requests: Any) -> Any:
        senders.append(requests[0].get_response_sender())

    backend = python_backend(stub, execute, decoupled=True)
    places = [stub.give(ARRAY.tobytes()) for _ in range(2)]
    work = batch(stub, *places)
    entries = backend.execute(work)
    assert entries == [None, None]
    assert work.prepare_result(entries)[0] == []
    backend.revoke(7)
    assert senders[0]._revoked


def test_a_decoupled_model_that_returns_something(stub: StubMemory) -> None:
    backend = python_backend(stub, lambda requests: [], decoupled=True)
    with pytest.raises(ContractBroken, match="'m_0' is using the decoupled mode and the execute function must return"):
        backend.execute(batch(stub, stub.give(ARRAY.tobytes())))


def test_cancelled_before_while_and_after(stub: StubMemory) -> None:
    seen: list[Any] = []
    senders: list[Any] = []

    def execute(requests: Any) -> Any:
        seen.append([request.is_cancelled() for request in requests])
        backend.cancel(7, [2])
        backend.cancel(8, [1])  # of another batch
        seen.append([request.is_cancelled() for request in requests])
        senders.append(requests[1].get_response_sender())
        return [same(requests[0]), None, same(requests[2])]

    backend = python_backend(stub, execute)
    work = batch(stub, *(stub.give(ARRAY.tobytes()) for _ in range(3)))
    work.cancelled = (0,)
    backend.execute(work)
    assert seen == [[True, False, False], [True, False, True]]
    assert not senders[0].is_cancelled()
    backend.cancel(7, [0, 1])
    assert senders[0].is_cancelled()
    backend.revoke(7)
