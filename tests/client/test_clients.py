"""What a client gets, from stubserve and from real Triton, over both protocols: values, views, regions."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from stubserve.client import AsyncClient, Client
from stubserve.client.tensors import ModelTensors
from tests.client.conftest import Asked
from tests.client.helpers import SHAPE, image, in_pool, regions, running
from tests.real_server import eventually


@pytest.fixture
def client(asked: Asked, protocol: str) -> Iterator[Client]:
    with Client(asked.url(protocol)) as client:
        yield client
        assert client.statistics().by_wire is None
    # The server has forgotten all of it.
    with Client(asked.url(protocol)) as other:
        assert regions(other.triton) == []


def test_arrays_go_there_and_come_back(client: Client) -> None:
    given = image(1)
    answer = client.infer("image", {"INPUT0": given})["OUTPUT0"]
    np.testing.assert_array_equal(answer, given)
    assert answer.dtype == np.uint8
    assert in_pool(answer)
    assert not in_pool(given)


def test_a_frame_is_read_where_it_lies(client: Client) -> None:
    with client.frame(SHAPE, np.uint8) as frame:
        frame[:] = image(2)
        answer = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
    np.testing.assert_array_equal(answer, image(2))
    # One for the frame, one for the answer: nothing was copied into a third.
    assert client.statistics().blocks == 2
    again = client.infer("other", {"INPUT0": answer})["OUTPUT0"]
    np.testing.assert_array_equal(again, image(2))
    assert client.statistics().blocks == 3


def test_a_part_of_a_frame_is_an_input(client: Client) -> None:
    with client.frame((3, *SHAPE), np.uint8) as frames:
        frames[:] = image(3, frames.shape)
        answer = client.infer("image", {"INPUT0": frames[1]})["OUTPUT0"]
        np.testing.assert_array_equal(answer, frames[1])
        assert client.statistics().blocks == 2
        # This one has gaps, so it is copied.
        backwards = client.infer("image", {"INPUT0": frames[1, :, ::-1]})["OUTPUT0"]
        np.testing.assert_array_equal(backwards, frames[1, :, ::-1])


def test_a_block_comes_back_with_the_last_view(client: Client) -> None:
    answer = client.infer("image", {"INPUT0": image(4)})["OUTPUT0"]
    part = memoryview(answer[1:].reshape(-1)[7:99])
    del answer
    assert client.statistics().lent == 1
    assert bytes(part) == image(4)[1:].tobytes()[7:99]
    del part
    assert client.statistics().lent == 0


def test_an_answer_that_is_kept_stays_as_it_is(client: Client) -> None:
    answers = [client.infer("image", {"INPUT0": image(seed)})["OUTPUT0"] for seed in range(5)]
    for seed, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, image(seed))
    # Five answers, and one block for all inputs
    assert client.statistics().blocks == 6


def test_the_batch_is_known_from_the_inputs(client: Client) -> None:
    given = np.random.default_rng(5).random((3, 50000)).astype(np.float16)
    answer = client.infer("batched", {"INPUT0": given})["OUTPUT0"]
    np.testing.assert_array_equal(answer, given)
    assert in_pool(answer)


def test_an_output_of_an_open_size_is_sent_unless_its_size_is_named(client: Client) -> None:
    given = np.arange(100_000, dtype=np.float32)
    sent = client.infer("open", {"INPUT0": given})["OUTPUT0"]
    named = client.infer("open", {"INPUT0": given}, outputs={"OUTPUT0": (150_000,)})["OUTPUT0"]
    np.testing.assert_array_equal(sent, given)
    np.testing.assert_array_equal(named, given)
    assert not in_pool(sent)
    assert in_pool(named)
    with pytest.raises(InferenceServerException, match="should be at least 400000 bytes"):
        client.infer("open", {"INPUT0": given}, outputs={"OUTPUT0": (20_000,)})
    # Refused is answered: its blocks are used again.
    assert client.statistics().lent == 1


def test_strings_and_small_arrays_are_sent(client: Client) -> None:
    given = np.array([b"one", b"zwei", b""] * 10_000, object)
    assert client.infer("strings", {"INPUT0": given})["OUTPUT0"].tolist() == given.tolist()
    small = client.infer("open", {"INPUT0": np.ones(3, np.float32)})["OUTPUT0"]
    assert small.tolist() == [1, 1, 1]
    assert client.statistics().blocks == 0


def test_outputs_may_be_chosen_by_name(client: Client) -> None:
    assert list(client.infer("image", {"INPUT0": image(6)}, outputs=["OUTPUT0"])) == ["OUTPUT0"]
    with pytest.raises(InferenceServerException, match="NOTHING"):
        client.infer("image", {"INPUT0": image(6)}, outputs=["NOTHING"])


def test_a_dtype_that_triton_has_not_is_named(client: Client) -> None:
    with pytest.raises(TypeError, match="input 'INPUT0' has the dtype complex128"):
        client.infer("image", {"INPUT0": np.ones(3, np.complex128)})


def test_over_the_limit_tensors_are_sent(asked: Asked, protocol: str) -> None:
    with Client(asked.url(protocol), limit=600_000) as client:
        # There is room for one array, so it is the input.
        for seed in range(3):
            answer = client.infer("image", {"INPUT0": image(seed)})["OUTPUT0"]
            np.testing.assert_array_equal(answer, image(seed))
            assert not in_pool(answer)
        assert 0 < client.statistics().nbytes <= 600_000
        with client.frame((10, *SHAPE), np.uint8) as frame:
            assert not in_pool(frame)


def test_regions_that_somebody_has_unregistered_are_registered_anew(client: Client) -> None:
    with client.frame(SHAPE, np.uint8) as frame:
        frame[:] = image(7)
        before = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
        client.triton.unregister_system_shared_memory()
        after = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
    np.testing.assert_array_equal(before, image(7))
    np.testing.assert_array_equal(after, image(7))
    assert in_pool(after)


def test_many_threads(client: Client) -> None:
    def work(thread: int) -> None:
        for number in range(25):
            seed = 100 * thread + number
            with client.frame(SHAPE, np.uint8) as frame:
                frame[:] = image(seed)
                first = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
                second = client.infer("other", {"INPUT0": first})["OUTPUT0"]
            np.testing.assert_array_equal(first, image(seed))
            np.testing.assert_array_equal(second, image(seed))

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(work, thread) for thread in range(6)]:
            done.result()
    assert client.statistics().lent == 0
    # A thread has its frame, its two answers, and the one that takes the place of one of them.
    assert 3 <= client.statistics().blocks <= 4 * 6


# Asks with images of its own, and says what it has asked.
PROCESS = """
    import sys
    import numpy as np
    from stubserve.client import Client

    url, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    made = np.random.default_rng(seed)
    with Client(url) as client:
        for _ in range(count):
            given = made.integers(0, 256, (4, 300, 400), dtype=np.uint8)
            answer = client.infer("image", {"INPUT0": given})["OUTPUT0"]
            assert np.array_equal(given, answer)
        print("good", client.statistics().by_wire, flush=True)
"""


def test_many_processes(asked: Asked, protocol: str) -> None:
    with ExitStack() as stack:
        ask = [stack.enter_context(running(PROCESS, asked.url(protocol), str(seed), "20")) for seed in range(4)]
        for process in ask:
            assert process.communicate()[0] == "good None\n"
    with Client(asked.url(protocol)) as client:
        assert regions(client.triton) == []


def test_a_block_of_a_request_without_an_answer_is_not_used_again(asked: Asked, protocol: str) -> None:
    go, executes = asked.folder / "go", asked.folder / "executes"
    go.unlink(missing_ok=True)
    executes.unlink(missing_ok=True)
    options = {"network_timeout": 1.0} if protocol == "http" else {}
    more = {"client_timeout": 1.0} if protocol == "grpc" else {}
    with Client(asked.url(protocol), **options) as client:
        with client.frame(SHAPE, np.uint8) as frame:
            frame[:] = image(8)
            with pytest.raises((InferenceServerException, TimeoutError)):
                client.infer("waits", {"INPUT0": frame}, **more)
        del frame
        eventually(executes.exists)
        kept = [client.infer("image", {"INPUT0": image(seed)})["OUTPUT0"] for seed in range(4)]
        # Four answers and one input: the blocks of the first request are not the pool's, though they are in use.
        assert client.statistics().blocks == 5
        assert len(regions(client.triton)) > 5 or asked.name == "stubserve"
        go.touch()
        # Each request has the server forget one region, once it is not in use.
        eventually(lambda: client.infer("image", {"INPUT0": kept[0]}) and len(regions(client.triton)) <= 6)
        for seed, answer in enumerate(kept):
            np.testing.assert_array_equal(answer, image(seed))
    with Client(asked.url(protocol)) as client:
        assert regions(client.triton) == []


async def _ask(client: AsyncClient, seed: int) -> None:
    async with client.frame(SHAPE, np.uint8) as frame:
        frame[:] = image(seed)
        first = (await client.infer("image", {"INPUT0": frame}))["OUTPUT0"]
    second = (await client.infer("other", {"INPUT0": image(seed + 1)}))["OUTPUT0"]
    np.testing.assert_array_equal(first, image(seed))
    np.testing.assert_array_equal(second, image(seed + 1))
    assert in_pool(first)


def test_asyncio(asked: Asked, protocol: str) -> None:
    async def main() -> None:
        async with AsyncClient(asked.url(protocol)) as client:
            await asyncio.gather(*(_ask(client, 10 * number) for number in range(8)))
            assert client.statistics().lent == 0
            assert client.statistics().by_wire is None

    asyncio.run(main())
    with Client(asked.url(protocol)) as client:
        assert regions(client.triton) == []


def test_a_task_that_is_cancelled_gives_its_blocks_up(asked: Asked, protocol: str) -> None:
    go, executes = asked.folder / "go", asked.folder / "executes"
    go.unlink(missing_ok=True)
    executes.unlink(missing_ok=True)

    async def main() -> None:
        async with AsyncClient(asked.url(protocol)) as client:
            task = asyncio.create_task(client.infer("waits", {"INPUT0": image(9)}))
            await asyncio.to_thread(eventually, executes.exists)
            task.cancel()
            with pytest.raises((asyncio.CancelledError, InferenceServerException)):
                await task
            del task
            answer = (await client.infer("image", {"INPUT0": image(9)}))["OUTPUT0"]
            assert client.statistics().blocks == 2
            go.touch()
            np.testing.assert_array_equal(answer, image(9))

    try:
        asyncio.run(main())
    finally:
        go.touch()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "grpc"])
def test_a_url_of_another_kind_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=f"'{url}' is no URL of a server"):
        Client(url)


def test_threads_that_have_ended_keep_no_descriptors(asked: Asked, protocol: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def ask() -> None:
        client.infer("image", {"INPUT0": image(1)})

    def in_threads(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        return descriptors()

    with Client(asked.url(protocol)) as client:
        ask()
        first = in_threads(1)
        assert in_threads(20) < first + 20
        before = descriptors()
        in_threads(1)
    # gRPC closes its sockets a little later.
    eventually(lambda: descriptors() < before)


@pytest.mark.parametrize(
    ("datatype", "given", "made"),
    [
        ("FP32", [[5.1, 3.5]], np.array([[5.1, 3.5]], np.float32)),
        ("FP32", np.array([[1, 2]], np.int64), np.array([[1, 2]], np.float32)),
        ("INT32", [[1.0, 2.0]], np.array([[1, 2]], np.int32)),
        ("UINT8", 7, np.array([[7]], np.uint8)),
        ("BOOL", [[1, 0]], np.array([[True, False]])),
        ("BYTES", "a", np.array([["a"]], object)),
        ("BYTES", [["a", "b"]], np.array([["a", "b"]], object)),
        ("FP64", [[0.1]], np.array([[0.1]])),
        ("INT32", [[1.5]], "input 'X' takes INT32, which 1.5 is not"),
        ("INT32", [[float("nan")]], "which nan is not"),
        ("UINT8", [[-1]], "which -1 is not"),
        ("INT8", [[1, 300]], "which 300 is not"),
        ("UINT64", [[-1]], "which -1 is not"),
        ("FP16", [[1e9]], "which 1000000000.0 is not"),
        ("FP32", [[16777217]], "which 16777217 is not"),
    ],
)
def test_what_is_given_becomes_what_the_model_takes(datatype: str, given: Any, made: Any) -> None:
    known = ModelTensors(True, {"X": (datatype, (-1,))}, {})
    if isinstance(made, str):
        with pytest.raises(ValueError, match=made):
            known.as_input("X", given)
        return
    array = known.as_input("X", given)
    np.testing.assert_array_equal(array, made)
    assert array.dtype == made.dtype


def test_a_list_and_an_array_of_float64_are_inputs(client: Client) -> None:
    given = image(9)
    answer = client.infer("image", {"INPUT0": given.tolist()})["OUTPUT0"]
    np.testing.assert_array_equal(answer, given)
    np.testing.assert_array_equal(client.infer("image", {"INPUT0": given.astype(np.float64)})["OUTPUT0"], given)
