from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import BACKEND_FAILURE, OTHER_FAILURE, REJECTED, Response
from stubserve.inference.work import Work
from stubserve.instances.instance import InstanceState
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.depth import QUICK_IN_A_ROW

from ..real_server import PATIENCE_S
from .fakes import Blocks, Script, Served

DYNAMIC = "max_batch_size: 8 dynamic_batching { }"
ORDERED = "max_batch_size: 8 dynamic_batching { preserve_ordering: true }"
DECOUPLED = "model_transaction_policy { decoupled: true }"


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        await scenario()

    asyncio.run(inside())


async def turn() -> None:
    """Lets the event loop do what is due."""
    await asyncio.sleep(0)


def memory_of(served: Served) -> int:
    """What the model's statistics say of its processes' memory, in bytes."""
    (row,) = served.model.statistics.to_dict("m", 1)["memory_usage"]
    return int(row["byte_size"])


def test_a_request_goes_to_an_instance_and_its_answer_back() -> None:
    async def scenario() -> None:
        served = Served(DYNAMIC)
        await served.start("m_0")
        blocks = Blocks()
        request = served.submit("a", blocks.tensor())
        assert served.model.queued == 1
        await turn()
        stub = served.stubs["m_0"]
        assert stub.batches == [["a"]]
        assert request.compute_start_ns == served.clock.now_ns
        stub.finish(a=Response([blocks.tensor()]))
        assert served.reader.ids == ["a"]
        assert blocks.live == 0
        statistics = served.model.statistics
        assert (statistics.success_count, statistics.execution_count, statistics.inference_count) == (1, 1, 1)
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_the_next_batch_is_handed_over_before_answers_go_out() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        first = served.submit("a")
        served.submit("b")
        await turn()
        stub = served.stubs["m_0"]
        seen: list[list[list[str]]] = []
        first.on_response = lambda request, response: seen.append(stub.batches)
        stub.finish()
        assert seen == [[["b"]]]

    run(scenario)


def test_requests_that_arrive_together_are_polled_once() -> None:
    async def scenario() -> None:
        served = Served(DYNAMIC)
        await served.start("m_0", "m_1")
        for id in "ab":
            request = served.reader.request(id)
            served.model.enqueue(request)
        await turn()
        assert served.stubs["m_0"].batches == []
        served.model.poll()
        assert served.stubs["m_0"].batches == [["a", "b"]]

    run(scenario)


def test_answers_keep_the_order_of_requests_across_instances() -> None:
    async def scenario() -> None:
        served = Served(ORDERED)
        await served.start("m_0", "m_1")
        for id in "abc":
            served.submit(id)
            await turn()
        assert (served.stubs["m_0"].batches, served.stubs["m_1"].batches) == ([["a"]], [["b"]])
        served.stubs["m_1"].finish()
        served.stubs["m_1"].finish()
        assert served.reader.ids == []
        served.stubs["m_0"].finish()
        assert served.reader.ids == ["a", "b", "c"]

    run(scenario)


def test_a_death_fails_what_the_stub_had_and_no_more() -> None:
    async def scenario() -> None:
        served = Served(DECOUPLED)
        first, _ = await served.start("m_0", "m_1")
        a, b = served.submit("a"), served.submit("b")
        await turn()
        one, two = served.stubs["m_0"], served.stubs["m_1"]
        one.finish(leave_open=[a])
        served.submit("c")
        await turn()
        assert one.batches == [["c"]]
        one.die()
        for id in "ac":
            error = served.reader.error(id)
            assert error.code is Code.INTERNAL
            assert "'m_0' is not healthy: killed by the test" in error.message
        # The execution of what was open had been counted.
        assert served.model.statistics.failures[BACKEND_FAILURE] == 1
        assert not served.model.down()
        assert first.state is InstanceState.FAILED
        assert "'m_0'" in served.model.why_not_ready()
        two.finish()
        assert served.reader.ids == ["a", "c", "b"] or served.reader.ids == ["c", "a", "b"]
        assert b.compute_end_ns
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_instances_that_share_a_stub_die_as_one_and_come_back_as_one() -> None:
    """No work goes from one dead instance to another, and there is one pause, and one start."""

    async def scenario() -> None:
        served = Served(restart_wait_s=PATIENCE_S)
        instances = await served.start("m_0", "m_1", "m_2", share=True)
        keeper = instances[0].keeper
        keeper.policy.limit = 1
        served.launched.clear()
        for id in "abcde":
            served.submit(id)
        await turn()
        died = dict(served.stubs)
        given = {name: stub.batches for name, stub in died.items()}
        died["m_1"].die()
        await turn()
        assert [one.state for one in instances] == [InstanceState.RESTARTING] * 3
        for name, batches in given.items():
            error = served.reader.error(batches[0][0])
            assert f"'{name}' is not healthy: killed by the test" in error.message
        assert len(served.reader.got) == 3
        await asyncio.wait_for(served.launched.wait(), PATIENCE_S)
        await turn()
        assert [one.state for one in instances] == [InstanceState.READY] * 3
        assert keeper.restarts == keeper.policy.restarts == 1
        for name, stub in served.stubs.items():
            assert stub is not died[name]
            if stub.batches:
                stub.finish()
        assert sorted(served.reader.ids[3:]) == ["d", "e"]

    run(scenario)


@pytest.mark.parametrize("restarts", [0, 1])
def test_work_that_the_stub_had_not_begun_waits_for_the_next(restarts: int) -> None:
    async def scenario() -> None:
        served = Served(restart_wait_s=PATIENCE_S)
        (instance,) = await served.start("m_0")
        instance.keeper.policy.limit = restarts
        served.launched.clear()
        stub = served.stubs["m_0"]
        for number in range(QUICK_IN_A_ROW):
            served.submit(f"quick {number}")
            await turn()
            stub.finish(took_ns=1000)
        blocks = Blocks()
        requests = [served.submit(id, blocks.tensor()) for id in "abcd"]
        await turn()
        assert stub.batches == [["a"], ["b"], ["c"], ["d"]]
        served.model.cancel(requests[3])
        stub.die()
        assert served.reader.error("a").code is Code.INTERNAL
        await turn()
        if not restarts:
            assert served.reader.error("b").code is served.reader.error("c").code is Code.UNAVAILABLE
            assert not blocks.live
            return
        assert served.reader.error("d").code is Code.CANCELLED
        await served.launched.wait()
        await turn()
        served.stubs["m_0"].finish()
        served.stubs["m_0"].finish()
        assert served.reader.ids[-2:] == ["b", "c"]
        assert served.model.statistics.fail_count == 2
        assert not blocks.live

    run(scenario)


def test_without_an_instance_everything_is_refused_with_the_cause() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        served.submit("a")
        served.submit("b")
        await turn()
        served.stubs["m_0"].die()
        assert served.reader.error("a").code is Code.INTERNAL
        waiting = served.reader.error("b")
        assert waiting.code is Code.UNAVAILABLE
        assert "has no running instance" in waiting.message
        assert "killed by the test" in waiting.message
        assert served.model.statistics.failures[OTHER_FAILURE] == 1
        assert served.model.down()
        with pytest.raises(ServeError, match=r"version 1 has no running instance.*killed by the test"):
            served.submit("c")

    run(scenario)


def test_a_passive_instance_gets_nothing() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0", passive=True)
        with pytest.raises(ServeError, match="has no running instance"):
            served.submit("a")

    run(scenario)


def test_a_refusal_by_the_queue_is_counted() -> None:
    async def scenario() -> None:
        served = Served("max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        await served.start("m_0")
        served.submit("a")
        with pytest.raises(ServeError, match="Exceeds maximum queue size"):
            served.submit("b")
        assert served.model.statistics.failures[REJECTED] == 1
        await turn()
        served.stubs["m_0"].finish()
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_cancelling_answers_who_waits_and_tells_who_executes() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        a, b = served.submit("a"), served.submit("b")
        await turn()
        served.model.cancel(b)
        assert served.reader.error("b").code is Code.CANCELLED
        a.pause()
        served.model.cancel(a)
        assert served.stubs["m_0"].work.cancelled == [b, a]
        assert a.cancelled
        assert a.stream is not None
        assert not a.stream.paused
        served.stubs["m_0"].finish()
        assert served.reader.ids == ["b", "a"]

    run(scenario)


def test_requests_beyond_the_streams_of_an_instance_wait_in_the_queue() -> None:
    async def scenario() -> None:
        served = Served(DECOUPLED)
        await served.start("m_0")
        stub = served.stubs["m_0"]
        stub.work.streams = 1
        a, b, c = (served.submit(id) for id in "abc")
        await turn()
        stub.work.full = True
        stub.finish(leave_open=[a])
        assert stub.batches == []
        assert served.model.queued == 2
        served.model.cancel(b)
        assert served.reader.error("b").code is Code.CANCELLED
        stub.work.full = False
        stub.send(a, Response(empty=True))
        stub.work.owner.on_results(stub.work.instance, ())
        assert stub.batches == [["c"]]
        stub.finish(leave_open=[c])
        stub.send(c, Response(empty=True))
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_a_cancelled_stream_that_is_held_back_gives_its_memory_up() -> None:
    async def scenario() -> None:
        served = Served(DECOUPLED + ORDERED)
        await served.start("m_0", "m_1")
        served.submit("slow")
        await turn()
        fast = served.submit("fast")
        await turn()
        blocks = Blocks()
        stub = served.stubs["m_1"]
        stub.send(fast, Response([blocks.tensor()], final=False))
        told: list[bool] = []
        stub.work.owner.when_delivered(fast, lambda: told.append(True), ())
        assert (blocks.live, told) == (1, [])
        served.model.cancel(fast)
        assert (blocks.live, told) == (0, [True])

    run(scenario)


def test_statistics_of_streams_are_kept_by_response() -> None:
    async def scenario() -> None:
        served = Served(DECOUPLED)
        await served.start("m_0")
        a = served.submit("a")
        await turn()
        stub = served.stubs["m_0"]
        stub.send(a, Response(final=False))
        stub.finish(leave_open=[a])
        stub.send(a, Response(empty=True))
        assert served.reader.ids == ["a", "a"]
        assert len(served.model.statistics.responses) == 2

    run(scenario)


def test_rescheduling_is_for_schedulers_that_know_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        served = Served()
        (instance,) = await served.start("m_0")
        a = served.submit("a")
        await turn()
        served.model.reports.on_rescheduled(instance, a)
        assert "not configured to handle such a flag" in served.reader.error("a").message

    with caplog.at_level(logging.CRITICAL):
        run(scenario)


def test_a_scheduler_with_slots_hears_of_responses_first() -> None:
    async def scenario() -> None:
        script = Script()
        served = Served(scheduler=script)
        (instance,) = await served.start("m_0")
        a = served.submit("a")
        work_of_a = Work([a])
        script.decide(run=[(instance, work_of_a)])
        await turn()
        script.heard.clear()
        a.on_response = lambda request, response: script.heard.append(("reader", request))
        served.stubs["m_0"].finish()
        assert script.heard == [
            ("response_complete", a), ("work_done", work_of_a), ("instance_idle", instance), ("reader", a),
        ]  # fmt: skip

    run(scenario)


def test_a_fault_of_the_scheduler_is_not_blamed_on_the_stub(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        script = Script()
        served = Served(scheduler=script)
        (instance,) = await served.start("m_0")
        a = served.submit("a")
        script.decide(run=[(instance, Work([a]))])
        await turn()
        script.waiting.clear()
        served.model.enqueue(served.reader.request("b"))
        script.decisions.append(RuntimeError("a fault of the scheduler"))
        served.stubs["m_0"].finish(a=Response(error=internal("what the model says")))
        assert served.reader.error("a").message == "what the model says"
        assert served.reader.error("b").code is Code.INTERNAL
        assert instance.state is InstanceState.READY

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "a fault of the scheduler" in caplog.text


# Other instances, and the end


def test_other_instances_join_and_leave_in_one_step() -> None:
    async def scenario() -> None:
        served = Served()
        stays, goes = await served.start("m_0", "m_1")
        served.submit("a")
        served.submit("b")
        await turn()
        comes = served.instance("m_2")
        await comes.start()
        served.submit("c")
        await turn()
        assert served.stubs["m_2"].batches == []  # it is not one of the model's yet
        config = parse_text("instance_group [ { count: 2 } ]", "config.pbtxt")
        (leaving,) = served.model.change_instances([stays, comes], config, 5)
        assert served.stubs["m_2"].batches == [["c"]]
        assert served.model.config is config
        served.submit("d")
        await turn()
        assert goes.state is InstanceState.DRAINING
        assert served.stubs["m_1"].batches == [["b"]]
        assert not served.stubs["m_1"].stopped.is_set()
        assert memory_of(served) == 3000
        served.stubs["m_1"].finish()
        await asyncio.wait_for(leaving, PATIENCE_S)
        assert served.stubs["m_1"].stopped.is_set()
        assert served.stubs["m_1"].batches == []
        served.stubs["m_0"].finish()
        assert served.stubs["m_0"].batches == [["d"]]
        assert served.reader.ids == ["b", "a"]
        assert memory_of(served) == 2000

    run(scenario)


def test_draining_waits_for_the_last_answer() -> None:
    async def scenario() -> None:
        served = Served(DECOUPLED)
        await served.start("m_0")
        a = served.submit("a")
        await turn()
        draining = asyncio.ensure_future(served.model.drained())
        stub = served.stubs["m_0"]
        stub.finish(leave_open=[a])
        await turn()
        assert not draining.done()
        stub.send(a, Response())
        await asyncio.wait_for(draining, PATIENCE_S)
        await served.model.stop(5)
        assert stub.stopped.is_set()

    run(scenario)


def test_stopping_leaves_nobody_waiting() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        served.submit("a")
        served.submit("b")
        await turn()
        stopping = asyncio.ensure_future(served.model.stop(5))
        await turn()
        with pytest.raises(ServeError, match="has no running instance"):
            served.submit("c")
        served.stubs["m_0"].die()
        await stopping
        assert sorted(served.reader.ids) == ["a", "b"]
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


# Readiness


def test_readiness_is_asked_of_every_instance_that_has_a_say() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0", "m_1")
        assert not served.model.checks_readiness()
        assert await served.model.check_ready() == ""
        for stub in served.stubs.values():
            stub.checks_readiness = True
        assert await served.model.check_ready() == ""
        served.stubs["m_1"].readiness = lambda: (False, "the cache is cold")
        assert await served.model.check_ready() == "the cache is cold"
        served.stubs["m_0"].die()
        assert "'m_0'" in await served.model.check_ready()

    run(scenario)


def test_an_instance_that_cannot_be_asked_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        stub = served.stubs["m_0"]
        stub.checks_readiness = True

        def broken() -> tuple[bool, str]:
            raise KeyError("reason")

        stub.readiness = broken
        reason = await served.model.check_ready()
        assert "'m_0' could not be asked whether it is ready" in reason
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "KeyError" in caplog.text


def test_whoever_asks_for_readiness_keeps_the_model_from_going() -> None:
    async def scenario() -> None:
        served = Served()
        await served.start("m_0")
        stub = served.stubs["m_0"]
        stub.checks_readiness = True
        asked = asyncio.Event()
        answer = asyncio.Event()

        async def slow() -> tuple[bool, str]:
            asked.set()
            await answer.wait()
            return True, ""

        stub.is_ready = slow  # type: ignore[method-assign]
        checking = asyncio.ensure_future(served.model.check_ready())
        await asked.wait()
        draining = asyncio.ensure_future(served.model.drained())
        await turn()
        assert not draining.done()
        answer.set()
        assert await checking == ""
        await asyncio.wait_for(draining, PATIENCE_S)

    run(scenario)
