"""A stub driven by hand, under every Python that it promises to run in, each with nothing but its numpy."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.wire.layout import HEAP

from stubserve.environments.environment import Environment
from stubserve.inference.request import SUCCESS, Request, Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.launcher import Launcher, Program
from stubserve.instances.seat import Seat
from stubserve.instances.services import Services
from stubserve.instances.stub_requests import UnansweredRequests
from stubserve.instances.work import Results
from stubserve.memory.blocks import Block
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory
from stubserve.model_config.complete import instances_of, normalise
from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import render_json
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings
from stubserve.repository.registry import Registry
from stubserve.settings.groups import LoggingSettings
from tests.environments.made import venv
from tests.real_server import PATIENCE_S, io_config, write_model
from tests.stub.test_interpreters import NUMPY

FP32 = 11
ONE = Tensor("INPUT0", FP32, (1,), bytes(4))

MODEL = """
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            version = np.array([sys.version_info[1]], np.float32)
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy()),
                    pb_utils.Tensor("VERSION", version),
                ])
                for request in requests
            ]
"""

CONFIG = io_config(extra='output [ { name: "VERSION" data_type: TYPE_FP32 dims: [ 1 ] } ]')


class Owner:
    """Waits for what a stub tells."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[list[tuple[Request, Response]]] = asyncio.Queue()

    def on_results(self, instance: object, results: Results) -> None:
        for _, finished in results:
            self.results.put_nowait(list(finished))

    def on_response(self, instance: object, request: Request, response: Response, start_ns: int) -> None:
        raise AssertionError("this model has no sender")

    def when_delivered(self, request: Request, act: Callable[[], None], batch: Collection[Request]) -> None:
        raise AssertionError("this model has no sender")

    def on_rescheduled(self, instance: object, request: Request) -> None:
        raise AssertionError("this model reschedules nothing")

    def on_death(self, cause: str, unanswered: UnansweredRequests) -> None:
        assert not any(unanswered)


async def started(folder: Path, memory: Memory, interpreter: str = sys.executable) -> tuple[Seat, Owner]:
    """The seat of a stub with the model in `folder` ready, and whoever is told of its results."""
    config: Any = normalise(parse_text((folder / "config.pbtxt").read_text(), "config.pbtxt"), folder.name, folder)
    version_dir = folder / "1"
    program = Program(version_dir / "model.py", "1.model", (version_dir, folder))
    services = Services(Registry(), LogSettings(LoggingSettings()), MetricRegistry({}))
    launcher = Launcher(memory, Environment(interpreter), folder, version_dir, program, services)
    (spec,) = instances_of(config)
    stub = launcher.boot(spec.name)
    assert await stub.handshake.imported() is False
    seat = await launcher.initialize(stub, spec, config, render_json(config))
    owner = Owner()
    seat.work.owner, seat.on_death = owner, owner.on_death
    return seat, owner


async def drive(folder: Path, interpreter: Path) -> int:
    """Loads the model, sends a small and a large tensor through it; the minor version of the Python that ran it."""
    memory = Memory(64 << 20)
    seat, owner = await started(folder, memory, str(interpreter))
    version = 0
    for size in (4, 500_000):
        array = np.arange(size, dtype=np.float32)
        if size == 4:
            tensor = Tensor("INPUT0", FP32, (size,), array.tobytes())
        else:
            block = memory.store(array.tobytes())
            tensor = Tensor("INPUT0", FP32, (size,), None, block.whole())
        request = Request([tensor])
        seat.work.execute(Work([request]))
        ((_, response),) = await asyncio.wait_for(owner.results.get(), PATIENCE_S)
        assert response.error is None
        assert request.outcome == SUCCESS
        echoed, ran = response.outputs
        np.testing.assert_array_equal(np.frombuffer(echoed.buffer, np.float32), array)
        if size > 4:
            # The very memory that the request came in.
            assert echoed.offset == tensor.offset
        version = int(np.frombuffer(ran.buffer, np.float32)[0])
    assert await seat.stop(60)
    return version


@pytest.mark.long
@pytest.mark.parametrize("version", NUMPY)
def test_a_stub_serves(version: str, repository: Path) -> None:
    folder = write_model(repository, "echo", MODEL, CONFIG)
    assert asyncio.run(drive(folder, venv(version, NUMPY[version]) / "bin" / "python")) == int(version.split(".")[1])


def ignored(pid: int) -> set[int]:
    """The signals that a process ignores."""
    _, _, rest = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")
    bits = int(rest.split()[0], 16)
    return {number for number in range(1, 65) if bits >> number - 1 & 1}


async def drive_group(folder: Path) -> None:
    seat, _ = await started(folder, Memory(64 << 20))
    # What its model starts can be ended with it, but beside neighbours Linux does not schedule it as one of them.
    assert (os.getpgid(seat.pid), os.getsid(seat.pid)) == (seat.pid, os.getsid(0))
    # A model that reads from the terminal, which is not the stub's, is told so, and not stopped for ever.
    assert {signal.SIGTTIN, signal.SIGTTOU} <= ignored(seat.pid)
    assert await seat.stop(60)


def test_a_stub_is_a_group_of_its_own_in_the_servers_session(repository: Path) -> None:
    asyncio.run(drive_group(write_model(repository, "echo", MODEL, CONFIG)))


def test_what_a_message_could_not_tell_the_stub_rides_on_the_next() -> None:
    memory = Memory(1 << 20)
    outputs = StubMemory(memory.segments)
    offsets = [memory.arena.segment(outputs.index).start + HEAP + 64 * number for number in range(3)]
    for offset in offsets[:2]:
        outputs.output(offset, 64).drop()
    frees = outputs.take_frees()
    assert frees == offsets[:2]
    outputs.output(offsets[2], 64).drop()
    outputs.keep_frees(frees)
    assert outputs.take_frees() == offsets
    assert outputs.take_frees() == []


MANY, NBYTES = 16_000, 8400

PLENTY = f"""
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            outputs = [pb_utils.Tensor("OUTPUT0", np.zeros({NBYTES}, np.uint8)) for _ in range({MANY})]
            return [pb_utils.InferenceResponse(outputs) for _ in requests]
"""


async def drive_plenty(folder: Path) -> None:
    memory = Memory(8 << 30)
    seat, owner = await started(folder, memory)
    committed = []
    unread: list[Response] = []
    for _ in range(6):
        seat.work.execute(Work([Request([])]))
        # While it executes the parent reads what came before: more blocks than a ring has room to tell of.
        for response in unread:
            drop_blocks(response.outputs)
        ((_, response),) = await asyncio.wait_for(owner.results.get(), PATIENCE_S)
        assert len(response.outputs) == MANY
        unread = [response]
        committed.append(memory.ledger.committed_by(1))
    # Those that are read and those that are being made; how many are free in time for the latter is a matter of luck.
    assert max(committed) < 2.5 * MANY * NBYTES
    assert await seat.stop(60)


@pytest.mark.slow
def test_blocks_that_have_been_read_are_free_again_however_many(repository: Path) -> None:
    asyncio.run(drive_plenty(write_model(repository, "plenty", PLENTY)))


SLOTS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            # What each place has, and the state itself, in the memory that it came in.
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor(tensor.name(), tensor.as_numpy()) for tensor in request.inputs()
                ])
                for request in requests
            ]
"""


async def drive_slots(folder: Path) -> None:
    memory = Memory(64 << 20)
    seat, owner = await started(folder, memory)
    state = np.arange(100_000, dtype=np.float32)
    freed: list[Block] = []
    blocks = [
        Block(one.offset, one.nbytes, one.view, freed.append)
        for one in (memory.store(state.tobytes()) for _ in range(2))
    ]
    states = [Tensor("STATE", FP32, state.shape, None, block.whole()) for block in blocks]
    ready = Tensor("READY", FP32, (1,), np.ones(1, np.float32).tobytes())
    given = Tensor("INPUT0", FP32, (2,), np.array([3, 4], np.float32).tobytes())
    request = Request([given], "one")
    seat.work.execute(Work.of_slots([None, request], [[states[0]], [ready, states[1]]]))
    ((answered, response),) = await asyncio.wait_for(owner.results.get(), PATIENCE_S)
    assert answered is request
    assert response.error is None
    assert [tensor.name for tensor in response.outputs] == ["INPUT0", "READY", "STATE"]
    np.testing.assert_array_equal(np.frombuffer(response.outputs[2].buffer, np.float32), state)
    assert response.outputs[2].offset == states[1].offset
    assert request.inputs == [given]
    # What the model answered in the empty place is let go of; the answer's own hold on the state goes with the answer.
    drop_blocks(response.outputs)
    drop_blocks(states)
    assert await seat.stop(60)
    assert freed == blocks


def test_empty_places_and_extra_inputs_reach_the_model(repository: Path) -> None:
    outputs = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}' for name in ("INPUT0", "READY", "STATE")
    )
    config = io_config(extra=f"output [ {outputs} ]")
    asyncio.run(drive_slots(write_model(repository, "slots", SLOTS, config)))


async def drive_empty_slot(folder: Path) -> None:
    seat, owner = await started(folder, Memory(64 << 20))
    for slots, refused in (([None, ONE], True), ([ONE], False)):
        requests = [None if slot is None else Request([slot]) for slot in slots]
        seat.work.execute(Work.of_slots(requests))
        finished = await asyncio.wait_for(owner.results.get(), PATIENCE_S)
        assert [request for request, _ in finished] == [request for request in requests if request is not None]
        for _, response in finished:
            assert ("a slot of the batch is empty" in str(response.error)) == refused
    assert await seat.stop(60)


def test_a_python_model_refuses_an_empty_slot_and_goes_on(repository: Path) -> None:
    asyncio.run(drive_empty_slot(write_model(repository, "echo", MODEL, CONFIG)))
