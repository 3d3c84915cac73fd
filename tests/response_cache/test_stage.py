from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block
from stubserve.response_cache.local import LocalStore
from stubserve.response_cache.stage import CacheStage
from stubserve.response_cache.store import ResponseCache
from tests.serving.fakes import Served

from ..real_server import PATIENCE_S

FP32 = 11


class Cached(Served):
    """A model with a cache in memory."""

    def __init__(self, config: str = "", limit: int = 1 << 20, coalesces: bool = False, remote: Any = None) -> None:
        self.blocks: list[Block] = []
        self.local = None if remote is not None else LocalStore(limit)
        cache = ResponseCache(self.local, remote, self.spare, self.store, coalesces)
        super().__init__(config, front=(partial(CacheStage, cache, b"identity"),))

    def spare(self, nbytes: int) -> Block:
        block = Block(0, nbytes, memoryview(bytearray(nbytes)), self.blocks.remove)
        self.blocks.append(block)
        return block

    def store(self, data: bytes | memoryview) -> Block:
        block = self.spare(len(data))
        block.view[:] = data
        return block

    async def ask(self, id: str, value: bytes = b"1234") -> Request:
        self.clock.now_ns += 1
        request = self.submit(id, Tensor("I", FP32, (len(value) // 4,), value))
        await asyncio.sleep(0)
        return request

    @property
    def batches(self) -> list[list[str]]:
        return self.stubs["m_0"].batches

    def finish(self, **answers: Response) -> None:
        self.stubs["m_0"].finish(**answers)

    def values(self) -> list[tuple[str, bytes]]:
        """What each request has got: the bytes of its first output."""
        return [(id, bytes(response.outputs[0].buffer)) for id, response in self.reader.got if not response.error]


def answer(value: bytes = b"same") -> Response:
    return Response([Tensor("O", FP32, (1,), value)])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        await scenario()

    asyncio.run(inside())


async def until(happened: Callable[[], object]) -> None:
    """Lets the event loop, and threads, go on until something is true."""
    for _ in range(60_000):
        if happened():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it has not happened within a minute")


def test_what_was_answered_once_is_answered_without_an_instance() -> None:
    async def scenario() -> None:
        served = Cached()
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=answer(b"1st."))
        await served.ask("b")
        assert served.batches == []
        assert served.values() == [("a", b"1st."), ("b", b"1st.")]
        statistics = served.model.statistics.to_dict("m", 1)
        stats = statistics["inference_stats"]
        assert (statistics["inference_count"], statistics["execution_count"]) == (1, 1)
        assert [stats[one]["count"] for one in ("success", "queue", "compute_infer", "cache_hit", "cache_miss")] == [
            2, 2, 1, 1, 1,
        ]  # fmt: skip
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_an_answer_never_comes_before_submit_has_returned() -> None:
    async def scenario() -> None:
        served = Cached()
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=answer())
        served.model.enqueue(served.reader.request("b", Tensor("I", FP32, (1,), b"1234")))
        assert served.reader.ids == ["a"]
        served.model.poll()
        assert served.reader.ids == ["a", "b"]

    run(scenario)


def test_a_hit_waits_for_the_answers_before_it_where_their_order_is_kept() -> None:
    async def scenario() -> None:
        served = Cached("max_batch_size: 8 dynamic_batching { preserve_ordering: true }")
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=answer())
        await served.ask("slow", b"5678")
        served.model.submit(served.reader.request("hit", Tensor("I", FP32, (1,), b"1234")))
        await asyncio.sleep(0)
        assert served.reader.ids == ["a"]
        served.finish(slow=answer())
        assert served.reader.ids == ["a", "slow", "hit"]

    run(scenario)


def test_an_error_is_not_kept() -> None:
    async def scenario() -> None:
        served = Cached()
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=Response(error=internal("no")))
        await served.ask("b")
        assert served.batches == [["b"]]
        served.finish(b=answer())
        await served.ask("c")
        assert served.values() == [("b", b"same"), ("c", b"same")]

    run(scenario)


def test_answers_keep_their_order_where_the_model_does() -> None:
    async def scenario() -> None:
        served = Cached("max_batch_size: 8 dynamic_batching { preserve_ordering: true }")
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=answer())
        await served.ask("slow", b"5678")
        await served.ask("hit")
        assert served.reader.ids == ["a"]
        served.finish(slow=answer(b"slow"))
        assert served.values() == [("a", b"same"), ("slow", b"slow"), ("hit", b"same")]

    run(scenario)


def test_an_answer_with_a_shape_of_the_clients_keeps_it() -> None:
    async def scenario() -> None:
        served = Cached('output [ { name: "O" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } } ]')
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=Response([Tensor("O", FP32, (2,), b"12345678")]))
        await served.ask("b")
        assert [response.outputs[0].shape for _, response in served.reader.got] == [(1, 2), (1, 2)]

    run(scenario)


def test_a_large_answer_is_copied_and_its_memory_is_the_caches() -> None:
    async def scenario() -> None:
        served = Cached(limit=8 << 20)
        await served.start("m_0")
        await served.ask("a")
        data = bytes(range(256)) * 8192
        block = Block(0, len(data), memoryview(bytearray(data)), lambda _: None)
        served.finish(a=Response([Tensor("O", FP32, (len(data) // 4,), None, block.whole())]))
        local = served.local
        assert local is not None
        await until(lambda: len(local))
        block.view[:] = bytes(len(data))
        await served.ask("b")
        await asyncio.sleep(0)
        assert served.reader.ids == ["a", "b"]
        assert bytes(served.blocks[0].view) == data

    run(scenario)


def test_a_large_request_is_hashed_elsewhere_and_can_be_cancelled_meanwhile() -> None:
    async def scenario() -> None:
        served = Cached()
        await served.start("m_0")
        large = b"x" * 400_000
        await served.ask("a", large)
        await until(lambda: served.batches)
        served.finish(a=answer())
        await served.ask("b", large)
        await until(lambda: len(served.reader.got) == 2)
        assert served.values() == [("a", b"same"), ("b", b"same")]
        gone = await served.ask("c", b"y" * 400_000)
        served.model.cancel(gone)
        await until(lambda: len(served.reader.got) == 3)
        assert served.reader.error("c").code is Code.CANCELLED
        assert served.batches == []
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_an_answer_larger_than_the_cache_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        served = Cached(limit=1024)
        await served.start("m_0")
        for id in "abc":
            await served.ask(id)
            served.finish(**{id: Response([Tensor("O", FP32, (1000,), bytes(4000))])})
        assert len(served.reader.got) == 3
        assert len(served.blocks) == 0

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert caplog.text.count("such answers are not kept") == 1


def test_a_hit_is_answered_while_no_instance_serves() -> None:
    async def scenario() -> None:
        served = Cached()
        await served.start("m_0")
        await served.ask("a")
        served.finish(a=answer())
        served.stubs["m_0"].die()
        await served.ask("b")
        assert served.values() == [("a", b"same"), ("b", b"same")]

    run(scenario)


# A thundering herd


def test_a_herd_of_equal_requests_is_computed_once() -> None:
    async def scenario() -> None:
        served = Cached(coalesces=True)
        await served.start("m_0")
        for id in "abcde":
            await served.ask(id)
        assert served.batches == [["a"]]
        served.finish(a=answer())
        await asyncio.sleep(0)
        assert served.values() == [(id, b"same") for id in "abcde"]
        statistics = served.model.statistics
        assert (statistics.success_count, statistics.cache_hit_count, statistics.cache_miss_count) == (5, 4, 1)
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_without_coalescing_each_of_a_herd_runs() -> None:
    async def scenario() -> None:
        served = Cached("max_batch_size: 8 dynamic_batching { }")
        await served.start("m_0", "m_1")
        for id in "abc":
            await served.ask(id)
        assert sum(len(stub.work.works) for stub in served.stubs.values()) == 2

    run(scenario)


def test_when_the_first_of_a_herd_fails_each_of_the_others_runs() -> None:
    async def scenario() -> None:
        served = Cached("max_batch_size: 8 dynamic_batching { }", coalesces=True)
        await served.start("m_0")
        for id in "abc":
            await served.ask(id)
        served.finish(a=Response(error=internal("no")))
        await asyncio.sleep(0)
        assert served.batches == [["b", "c"]]
        served.finish(b=answer(b"of b"), c=answer(b"of c"))
        assert served.reader.error("a").message == "no"
        assert served.values() == [("b", b"of b"), ("c", b"of c")]

    run(scenario)


def test_when_the_client_of_the_first_is_gone_another_takes_its_place() -> None:
    async def scenario() -> None:
        served = Cached(coalesces=True)
        await served.start("m_0")
        await served.ask("other", b"5678")
        first = await served.ask("a")
        for id in "bc":
            await served.ask(id)
        served.model.cancel(first)
        await asyncio.sleep(0)
        assert served.reader.error("a").code is Code.CANCELLED
        served.finish(other=answer())
        assert served.batches == [["b"]]
        served.finish(b=answer(b"of b"))
        await asyncio.sleep(0)
        assert served.values()[1:] == [("b", b"of b"), ("c", b"of b")]
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_who_waits_for_another_can_be_cancelled() -> None:
    async def scenario() -> None:
        served = Cached(coalesces=True)
        await served.start("m_0")
        await served.ask("a")
        gone = await served.ask("b")
        await served.ask("c")
        # Whoever looks for deadlocks sees that it waits for who executes the first.
        assert [waiter.has(gone) for waiter in served.model.waiters_for(gone)] == [False]
        served.model.cancel(gone)
        assert served.reader.error("b").code is Code.CANCELLED
        served.finish(a=answer())
        await asyncio.sleep(0)
        assert served.values() == [("a", b"same"), ("c", b"same")]

    run(scenario)


def test_when_the_instance_dies_nobody_of_a_herd_is_forgotten() -> None:
    async def scenario() -> None:
        served = Cached(coalesces=True)
        await served.start("m_0")
        for id in "abc":
            await served.ask(id)
        served.stubs["m_0"].die()
        await asyncio.sleep(0)
        assert [served.reader.error(id).code for id in "abc"] == [Code.INTERNAL, Code.UNAVAILABLE, Code.UNAVAILABLE]
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


# A store elsewhere


class Remote:
    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.distrusted: list[str] = []
        self.fails = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, key: bytes) -> bytes:
        await self.answers.wait()
        if self.fails:
            raise RuntimeError("a mistake in the store")
        return self.kept.get(key, b"")

    async def put(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value

    def distrust(self, key: bytes, why: str) -> None:
        self.distrusted.append(why)

    async def close(self) -> None:
        pass


async def asked(served: Cached, id: str, ended: int) -> None:
    await served.ask(id)
    await until(lambda: served.batches or len(served.reader.got) >= ended)


def test_a_store_elsewhere_is_asked_and_told() -> None:
    async def scenario() -> None:
        remote = Remote()
        served = Cached(remote=remote)
        await served.start("m_0")
        await asked(served, "a", 1)
        served.finish(a=Response([Tensor("O", 2, (3000,), b"x" * 3000)]))
        await asyncio.sleep(0.01)
        await asked(served, "b", 2)
        assert served.values() == [("a", b"x" * 3000), ("b", b"x" * 3000)]
        assert served.blocks == []  # what is large lies in the arena until it has been read
        remote.kept = {key: value[:-1] for key, value in remote.kept.items()}
        await asked(served, "c", 3)
        assert served.batches == [["c"]]
        assert remote.distrusted == ["its checksum is wrong"]
        served.finish(c=answer())
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_whatever_goes_wrong_with_a_store_a_request_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        remote = Remote()
        remote.fails = True
        served = Cached(remote=remote)
        await served.start("m_0")
        await asked(served, "a", 1)
        served.finish(a=answer())
        assert served.values() == [("a", b"same")]

    run(scenario)
    assert "a mistake in the store" in caplog.text


LIMITED = "max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"


def test_requests_that_wait_for_a_store_elsewhere_count_for_the_limit_of_the_queue() -> None:
    async def scenario() -> None:
        remote = Remote()
        served = Cached(LIMITED, remote=remote)
        await served.start("m_0")
        remote.answers.clear()
        gone = await served.ask("a")
        await served.ask("b")
        with pytest.raises(ServeError, match="Exceeds maximum queue size"):
            await served.ask("c")
        assert served.model.statistics.fail_count == 1
        served.model.cancel(gone)
        await until(lambda: served.reader.got)
        assert served.reader.error("a").code is Code.CANCELLED
        await served.ask("d")
        remote.answers.set()
        await until(lambda: served.batches)
        assert served.batches == [["b", "d"]]
        served.finish(b=answer(), d=answer())
        assert [id for id, _ in served.values()] == ["b", "d"]
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_a_request_that_waits_for_a_store_elsewhere_gives_way_to_another_client() -> None:
    async def scenario() -> None:
        remote = Remote()
        served = Cached(LIMITED, remote=remote)
        await served.start("m_0")
        remote.answers.clear()
        for id, client in (("a", "many"), ("b", "many"), ("c", "one")):
            served.model.submit(served.reader.request(id, Tensor("I", FP32, (1,), b"1234"), client=client))
        await until(lambda: served.reader.got)
        assert "the place went to a client that has fewer" in served.reader.error("b").message
        remote.answers.set()
        await until(lambda: served.batches)
        assert served.batches == [["a", "c"]]
        served.finish(a=answer(), c=answer())
        assert [id for id, _ in served.values()] == ["a", "c"]
        await asyncio.wait_for(served.model.drained(), PATIENCE_S)

    run(scenario)


def test_a_hit_of_a_store_elsewhere_is_answered_while_no_instance_serves() -> None:
    async def scenario() -> None:
        remote = Remote()
        served = Cached(LIMITED, remote=remote)
        await served.start("m_0")
        await asked(served, "a", 1)
        served.finish(a=answer())
        await until(lambda: remote.kept)
        served.stubs["m_0"].die()
        await asked(served, "b", 2)
        assert served.values() == [("a", b"same"), ("b", b"same")]

    run(scenario)
