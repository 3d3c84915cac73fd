"""tritonclient.grpc as its users call it: sync, async, aio and streams."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.real_server import IDENTITY, PATIENCE_S, Serving, io_config, write_model
from tests.server.grpc_calls import SERVICE, connected

# tritonclient's own imports warn on some versions; those are not ours to fix.
pytestmark = pytest.mark.filterwarnings("default")

SLOW = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.3)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo", IDENTITY, io_config("FP32", "-1", 8, "dynamic_batching { }"))
    write_model(repository, "words", IDENTITY, io_config("STRING", "-1", 8))
    write_model(repository, "slow", SLOW, io_config("FP32", "-1", 8))
    with Serving(repository) as running:
        yield running


def given(client: Any, array: np.ndarray, datatype: str = "FP32") -> Any:
    tensor = client.InferInput("INPUT0", array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def answered(triton: Any) -> int:
    """By its own statistics, which are asked over gRPC."""
    (row,) = triton.get_inference_statistics("echo").model_stats
    return int(row.inference_stats.success.count)


def test_sync(server: Serving) -> None:
    import tritonclient.grpc as client

    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("echo")
        assert triton.get_server_metadata().name == "triton"
        (described,) = triton.get_model_metadata("echo", as_json=True)["inputs"]
        assert described == {"name": "INPUT0", "datatype": "FP32", "shape": ["-1", "-1"]}
        assert triton.get_model_config("echo").config.max_batch_size == 8
        assert {row.name for row in triton.get_model_repository_index().models} == {"echo", "words", "slow"}
        before = answered(triton)
        array = np.arange(12, dtype=np.float32).reshape(2, 6)
        for algorithm in (None, "gzip", "deflate"):
            result = triton.infer(
                "echo",
                [given(client, array)],
                outputs=[client.InferRequestedOutput("OUTPUT0")],
                request_id="7",
                compression_algorithm=algorithm,
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
            assert result.get_response().id == "7"
        words = np.array([["grüße", "", "x" * 100_000]], dtype=np.object_)
        result = triton.infer("words", [given(client, words, "BYTES")])
        assert [word.decode() for word in result.as_numpy("OUTPUT0")[0]] == words[0].tolist()
        with pytest.raises(client.InferenceServerException, match="unknown model: 'nobody'") as error:
            triton.infer("nobody", [given(client, array)])
        assert error.value.status() == "StatusCode.NOT_FOUND"
        assert answered(triton) - before == 3
        with pytest.raises(client.InferenceServerException, match="not allowed if polling is enabled"):
            triton.load_model("echo")


def test_large_tensors(server: Serving) -> None:
    import tritonclient.grpc as client

    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        array = np.random.default_rng(1).random((1, 3_000_000), np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(triton.infer("echo", [given(client, array)]).as_numpy("OUTPUT0"), array)


def test_async(server: Serving) -> None:
    import tritonclient.grpc as client

    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        for number in range(20):
            array = np.full((1, 5), number, np.float32)
            triton.async_infer(
                "echo",
                [given(client, array)],
                lambda result, error, number=number: answers.put((number, result, error)),
            )
        for _ in range(20):
            number, result, error = answers.get(timeout=PATIENCE_S)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.full((1, 5), number))


def test_aio(server: Serving) -> None:
    import tritonclient.grpc.aio as client

    async def talk() -> None:
        async with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:

            async def ask(number: int) -> None:
                array = np.full((1, 300_000), number, np.float32)
                result = await triton.infer("echo", [given(client, array)])
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

            await asyncio.gather(*(ask(number) for number in range(12)))

            async def requests() -> Any:
                for number in range(5):
                    array = np.full((1, 3), number, np.float32)
                    yield {"model_name": "echo", "inputs": [given(client, array)], "request_id": str(number)}

            seen = []
            async for result, error in triton.stream_infer(requests()):
                assert error is None
                seen.append((result.get_response().id, result.as_numpy("OUTPUT0")[0, 0]))
            assert seen == [(str(number), number) for number in range(5)]

    asyncio.run(talk())


def test_a_stream_answers_in_the_order_of_requests(server: Serving) -> None:
    import tritonclient.grpc as client

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        triton.start_stream(lambda result, error: answers.put((result, error)))
        array = np.zeros((1, 4), np.float32)
        for number, model in enumerate(["slow", "echo", "echo", "nobody", "echo", "slow", "echo"]):
            triton.async_stream_infer(model, [given(client, array)], request_id=str(number))
        for number in range(7):
            result, error = answers.get(timeout=PATIENCE_S)
            if number == 3:
                assert result is None
                assert "Request for unknown model: 'nobody' is not found" in str(error)
            else:
                response = result.get_response()
                assert response.id == str(number)
                assert response.parameters["triton_final_response"].bool_param
                assert response.outputs[0].name == "OUTPUT0"
        triton.stop_stream()
    assert answers.empty()


def test_a_unary_call_without_its_message(server: Serving) -> None:
    with connected(server) as calls, pytest.raises(grpc.RpcError) as error:
        calls.channel.stream_unary(f"{SERVICE}/ModelInfer")(iter([]), timeout=PATIENCE_S)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")
