from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stubserve.errors import Code, ServeError
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Work
from stubserve.schedulers.factory import create_scheduler
from stubserve.sequences.batcher import SequenceBatcher
from stubserve.sequences.model import SequenceModel
from tests.serving.fakes import FakeStub, Served
from tests.serving.test_instance_model import run, turn

from ..real_server import PATIENCE_S

# By the real clock, which alarms go by, nobody is idle for too long.
CONFIG = """
    name: "m"
    max_batch_size: 2
    input { name: "IN" data_type: TYPE_INT32 dims: [1] }
    sequence_batching { direct { } max_sequence_idle_microseconds: 1000000000000000 }
"""


class ServedSequences(Served):
    """A model with sequences, of instances whose stubs are fakes."""

    model: SequenceModel

    def __init__(self, config: str = CONFIG) -> None:
        super().__init__(config)
        scheduler = create_scheduler(self.config)
        assert isinstance(scheduler, SequenceBatcher)
        self.model = SequenceModel("m", 1, self.config, scheduler, self.clock)

    def step(self, id: str, sequence: int, flags: int = 0) -> Request:
        request = self.reader.request(id, correlation_id=sequence, flags=flags)
        self.model.submit(request)
        return request


async def reloaded(config: str = CONFIG) -> tuple[ServedSequences, ServedSequences]:
    """One that runs sequence 1, and what takes over from it."""
    old, new = ServedSequences(), ServedSequences(config)
    await old.start("old")
    await new.start("new")
    old.step("a1", 1, SEQUENCE_START)
    await turn()
    old.stubs["old"].finish()
    new.model.takes_over_from(old.model)
    return old, new


def test_sequences_go_on_where_they_began_and_new_ones_do_not() -> None:
    async def scenario() -> None:
        old, new = await reloaded()
        new.step("a2", 1)
        new.step("b1", 2, SEQUENCE_START)
        await turn()
        assert (old.stubs["old"].batches, new.stubs["new"].batches) == ([["a2"]], [["b1"]])
        old.stubs["old"].finish()
        new.stubs["new"].finish()
        # One that begins again is a new one.
        new.step("a3", 1, SEQUENCE_START)
        new.step("a4", 1)
        await turn()
        assert (old.stubs["old"].batches, new.stubs["new"].batches) == ([], [["a3"]])

    run(scenario)


WITH_STATES = CONFIG.replace("direct { }", 'direct { } state { input_name: "S" output_name: "T" }').replace(
    "max_batch_size", 'backend: "tracking" max_batch_size'
)


async def reloaded_with_states() -> tuple[ServedSequences, ServedSequences]:
    """As `reloaded`; the server keeps the state of the sequence, which is 1."""
    old, new = ServedSequences(WITH_STATES), ServedSequences(WITH_STATES)
    await old.start("old")
    await new.start("new")
    old.step("a1", 1, SEQUENCE_START)
    await turn()
    old.stubs["old"].finish(a1=Response([Tensor("T", 2, [1], b"1")]))
    new.model.takes_over_from(old.model)
    return old, new


def states_of(stub: FakeStub) -> list[bytes]:
    """The states that the requests of a stub's only batch got."""
    (work,) = stub.work.works
    return [bytes(tensor.buffer) for tensors in work.extra_inputs or () for tensor in tensors]


def test_a_sequence_whose_states_the_server_keeps_moves_with_its_next_request() -> None:
    """When none of its requests is under way."""

    async def scenario() -> None:
        old, new = await reloaded_with_states()
        old.step("a2", 1)
        new.step("a3", 1)
        await turn()
        assert (old.stubs["old"].batches, new.stubs["new"].batches) == ([["a2"]], [])
        old.stubs["old"].finish(a2=Response([Tensor("T", 2, [1], b"2")]))
        await turn()
        old.stubs["old"].finish(a3=Response([Tensor("T", 2, [1], b"3")]))
        drained = asyncio.ensure_future(old.model.drained())
        new.step("a4", 1)
        await turn()
        assert (old.stubs["old"].batches, new.stubs["new"].batches) == ([], [["a4"]])
        assert states_of(new.stubs["new"]) == [b"3"]
        await asyncio.wait_for(drained, PATIENCE_S)

    run(scenario)


def test_sequences_move_from_a_model_whose_instances_are_gone() -> None:
    """Otherwise it would never be drained, as nobody there would notice that they are idle."""

    async def scenario() -> None:
        old, new = await reloaded_with_states()
        old.step("b1", 2, SEQUENCE_START)
        old.step("c1", 3, SEQUENCE_START)
        new.step("c2", 3, SEQUENCE_START)
        await turn()
        new.stubs["new"].finish(c2=Response([Tensor("T", 2, [1], b"7")]))
        drained = asyncio.ensure_future(old.model.drained())
        await turn()
        old.stubs["old"].die()
        await asyncio.wait_for(drained, PATIENCE_S)
        assert "killed by the test" in old.reader.error("b1").message
        new.step("a2", 1)
        await turn()
        assert states_of(new.stubs["new"]) == [b"1"]
        new.stubs["new"].finish()
        # This one had begun anew meanwhile.
        new.step("c3", 3, SEQUENCE_END)
        await turn()
        assert states_of(new.stubs["new"]) == [b"7"]
        new.stubs["new"].finish()
        # This one had no state yet, and gets the slot that is free now.
        new.step("b2", 2)
        await turn()
        assert new.stubs["new"].batches == [["b2"]]
        assert states_of(new.stubs["new"]) == []

    run(scenario)


def test_the_old_one_is_drained_when_its_last_sequence_has_ended() -> None:
    async def scenario() -> None:
        old, new = await reloaded()
        drained = asyncio.ensure_future(old.model.drained())
        await turn()
        assert not drained.done()
        new.step("a2", 1, SEQUENCE_END)
        await turn()
        old.stubs["old"].finish()
        await asyncio.wait_for(drained, PATIENCE_S)
        with pytest.raises(ServeError, match="must specify the START flag"):
            new.step("a3", 1)

    run(scenario)


def test_who_takes_over_lets_go_when_it_goes_itself() -> None:
    async def scenario() -> None:
        old, new = await reloaded()
        drained = asyncio.ensure_future(old.model.drained())
        await turn()
        await asyncio.wait_for(new.model.drained(), PATIENCE_S)
        await asyncio.wait_for(drained, PATIENCE_S)

    run(scenario)


def test_a_request_that_was_passed_on_can_be_cancelled() -> None:
    async def scenario() -> None:
        old, new = await reloaded()
        new.step("a2", 1)
        waiting = new.step("a3", 1)
        await turn()
        new.model.cancel(waiting)
        await turn()
        assert new.reader.error("a3").code is Code.CANCELLED
        assert old.stubs["old"].batches == [["a2"]]

    run(scenario)


def test_nothing_is_taken_over_where_requests_differ() -> None:
    async def scenario() -> None:
        old, new = await reloaded(CONFIG.replace("dims: [1]", "dims: [2]"))
        with pytest.raises(ServeError, match="must specify the START flag"):
            new.step("a2", 1)
        await asyncio.wait_for(old.model.drained(), PATIENCE_S)

    run(scenario)


def test_a_sequence_keeps_its_model_in_use() -> None:
    async def scenario() -> None:
        served = ServedSequences()
        await served.start("i")
        served.step("a1", 1, SEQUENCE_START)
        await turn()
        served.stubs["i"].finish()
        assert (served.model.under_way, served.model.in_use) == (0, 1)
        served.step("a2", 1, SEQUENCE_END)
        await turn()
        served.stubs["i"].finish()
        assert served.model.in_use == 0

    run(scenario)


def test_when_the_only_instance_dies_who_waits_is_told_of_the_sequence() -> None:
    async def scenario() -> None:
        served = ServedSequences()
        await served.start("i")
        served.step("a1", 1, SEQUENCE_START)
        served.step("a2", 1)
        await turn()
        served.stubs["i"].die()
        await turn()
        assert "killed by the test" in served.reader.error("a1").message
        assert "sequence 1 of model 'm' has ended because its instance 'i' is gone" in served.reader.error("a2").message

    run(scenario)


def test_empty_slots_are_counted_in_the_size_of_a_batch_as_upstream() -> None:
    async def scenario() -> None:
        served = ServedSequences()
        await served.start("i")
        for id, sequence, flags in (("a1", 1, SEQUENCE_START), ("b1", 2, SEQUENCE_START), ("b2", 2, 0)):
            served.step(id, sequence, flags)
            await turn()
            works: list[Any] = served.stubs["i"].work.works
            if works:
                served.stubs["i"].finish()
                await turn()
        while served.stubs["i"].batches:
            served.stubs["i"].finish()
            await turn()
        statistics = served.model.statistics
        assert statistics.inference_count == 3
        assert {size: entry.count for size, entry in statistics.executions.items()} == {1: 1, 2: 2}

    run(scenario)


def test_a_refusal_is_not_counted() -> None:
    async def scenario() -> None:
        served = ServedSequences()
        await served.start("i")
        with pytest.raises(ServeError, match="must specify the START flag"):
            served.step("a1", 1)
        assert served.model.statistics.fail_count == 0

    run(scenario)


def test_work_says_how_much_of_it_is_empty() -> None:
    request = Request([])
    assert Work([request]).empty == 0
    assert Work.of_slots([None, request, None]).empty == 2
