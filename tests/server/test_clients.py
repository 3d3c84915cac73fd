"""tritonclient.http as its users call it: sync, async and aio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from tests.real_server import IDENTITY, Serving, io_config, write_model

# tritonclient's own imports (gevent, pkg_resources) warn on some versions; those are not ours to fix.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo", IDENTITY, io_config("FP32", "-1", 8, "dynamic_batching { }"))
    write_model(repository, "words", IDENTITY, io_config("STRING", "-1", 8))
    with Serving(repository) as running:
        yield running


def answered(server: Serving) -> int:
    count: int = server.statistics("echo")["inference_stats"]["success"]["count"]
    return count


def test_sync(server: Serving) -> None:
    import tritonclient.http as client

    with client.InferenceServerClient(f"127.0.0.1:{server.port}") as triton:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("echo")
        assert triton.get_server_metadata()["name"] == "triton"
        (described,) = triton.get_model_metadata("echo")["inputs"]
        assert described == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}
        assert triton.get_model_config("echo")["max_batch_size"] == 8
        assert {row["name"] for row in triton.get_model_repository_index()} == {"echo", "words"}
        before = answered(server)
        array = np.arange(12, dtype=np.float32).reshape(2, 6)
        for binary in (True, False):
            given = client.InferInput("INPUT0", array.shape, "FP32")
            given.set_data_from_numpy(array, binary_data=binary)
            wanted = client.InferRequestedOutput("OUTPUT0", binary_data=binary)
            for algorithm in (None, "gzip", "deflate"):
                result = triton.infer(
                    "echo",
                    [given],
                    outputs=[wanted],
                    request_id="7",
                    request_compression_algorithm=algorithm,
                    response_compression_algorithm=algorithm,
                )
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
                assert result.get_response()["id"] == "7"
        words = np.array([["grüße", "", "x" * 100_000]], dtype=np.object_)
        given = client.InferInput("INPUT0", words.shape, "BYTES")
        given.set_data_from_numpy(words)
        result = triton.infer("words", [given])
        assert [word.decode() for word in result.as_numpy("OUTPUT0")[0]] == words[0].tolist()
        with pytest.raises(client.InferenceServerException, match="unknown model: 'nobody'"):
            triton.infer("nobody", [given])
        assert answered(server) - before == 6


def test_async(server: Serving) -> None:
    import tritonclient.http as client

    with client.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as triton:
        pending = []
        for number in range(20):
            array = np.full((1, 5), number, np.float32)
            given = client.InferInput("INPUT0", array.shape, "FP32")
            given.set_data_from_numpy(array)
            pending.append(triton.async_infer("echo", [given]))
        for number, one in enumerate(pending):
            np.testing.assert_array_equal(one.get_result().as_numpy("OUTPUT0"), np.full((1, 5), number))


def test_aio(server: Serving) -> None:
    import tritonclient.http.aio as client

    async def talk() -> None:
        async with client.InferenceServerClient(f"127.0.0.1:{server.port}") as triton:

            async def ask(number: int) -> None:
                array = np.full((1, 200_000), number, np.float32)
                given = client.InferInput("INPUT0", array.shape, "FP32")
                given.set_data_from_numpy(array)
                result = await triton.infer("echo", [given])
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

            await asyncio.gather(*(ask(number) for number in range(12)))

    asyncio.run(talk())
