"""Models and clients put together the way Triton's documentation does it: what other tests have apart, combined.

The examples of upstream are not here (docs/guides/examples.md tells how to run them); these models take the same roads.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.real_server import PATIENCE_S, Serving, write_model

# tritonclient's own imports warn on some versions; those are not ours to fix.
pytestmark = pytest.mark.filterwarnings("default")

COUNTS = [4, 2, 0, 1]

# As many responses as the input says, from a thread that outlives execute; the end is a flag of its own.
COUNTDOWN = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
                threading.Thread(target=self.count, args=(request.get_response_sender(), start)).start()

        def count(self, sender, start):
            for number in range(start[0], 0, -1):
                left = pb_utils.Tensor("LEFT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse(output_tensors=[left]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Two streams at once from within a coroutine; the last response of each is empty.
TRIANGLES = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            return [await self.answer(request) for request in requests]

        async def answer(self, request):
            start = pb_utils.get_input_tensor_by_name(request, "START")
            calls = [
                pb_utils.InferenceRequest(model_name="countdown", inputs=[start], requested_output_names=["LEFT"])
                for _ in range(2)
            ]
            total = np.zeros(1, np.int32)
            for responses in await asyncio.gather(*(call.async_exec(decoupled=True) for call in calls)):
                empty = 0
                for response in responses:
                    if response.has_error():
                        raise pb_utils.TritonModelException(response.error().message())
                    if response.output_tensors():
                        total += pb_utils.get_output_tensor_by_name(response, "LEFT").as_numpy()
                    else:
                        empty += 1
                assert empty == 1, empty
            return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", total)])
"""

# The model to call comes as a string tensor, whose elements are bytes; the answer goes on as it came.
ROUTER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            name = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()[0]
            assert type(name) is bytes
            call = pb_utils.InferenceRequest(
                model_name=name,
                inputs=[pb_utils.get_input_tensor_by_name(request, "START")],
                requested_output_names=["TOTAL"],
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            return pb_utils.InferenceResponse(output_tensors=response.output_tensors())
"""

# What a library's model code leans on: modules beside model.py in three ways, classes that need their module,
# processes of all three kinds.
LEANING = """
    import dataclasses
    import multiprocessing
    import pickle
    import typing
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np
    import triton_python_backend_utils as pb_utils

    from .neighbour import NAME as RELATIVE
    from neighbour import NAME as ABSOLUTE

    @dataclasses.dataclass
    class Record:
        number: "int"

    def square(number):
        return number * number

    class TritonPythonModel:
        def execute(self, requests):
            facts = [RELATIVE, ABSOLUTE]
            facts.append(repr(pickle.loads(pickle.dumps(Record(1)))))
            facts.append(typing.get_type_hints(Record)["number"].__name__)
            for method in ("fork", "spawn", "forkserver"):
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
                    facts.append(str(list(pool.map(square, [1, 2, 3]))))
            answer = pb_utils.Tensor("FACTS", np.array(facts, dtype=object))
            return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""

START = 'input [ { name: "START" data_type: TYPE_INT32 dims: [ 1 ] } ]'
TOTAL = 'output [ { name: "TOTAL" data_type: TYPE_INT32 dims: [ 1 ] } ]'
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("models")
    left = 'output [ { name: "LEFT" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    name = 'input [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]'
    facts = 'output [ { name: "FACTS" data_type: TYPE_STRING dims: [ -1 ] } ]'
    write_model(folder, "countdown", COUNTDOWN, f'backend: "python" {START} {left} {DECOUPLED}')
    write_model(folder, "triangles", TRIANGLES, f'backend: "python" {START} {TOTAL}')
    write_model(folder, "router", ROUTER, f'backend: "python" {name} {START} {TOTAL}')
    leaning = write_model(folder, "leaning", LEANING, f'backend: "python" {START} {facts}')
    (leaning / "1" / "neighbour.py").write_text('NAME = "neighbour"\n')
    with Serving(folder) as running:
        running.wait_until_ready()
        yield running


def start(client: Any, number: int) -> Any:
    tensor = client.InferInput("START", [1], "INT32")
    tensor.set_data_from_numpy(np.array([number], np.int32))
    return tensor


def named(client: Any, model: str) -> Any:
    tensor = client.InferInput("NAME", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([model], dtype=np.object_))
    return tensor


def countdowns(numbers: list[int]) -> dict[str, list[int]]:
    return {str(number): list(range(number, 0, -1)) for number in numbers}


@pytest.mark.parametrize("empty_final", [False, True])
def test_a_stream_with_several_requests_under_way(server: Serving, empty_final: bool) -> None:
    import tritonclient.grpc as client

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
        triton.start_stream(lambda result, error: answers.put((result, error)))
        for number in COUNTS:
            triton.async_stream_infer(
                "countdown",
                [start(client, number)],
                request_id=str(number),
                outputs=[client.InferRequestedOutput("LEFT")],
                enable_empty_final_response=empty_final,
            )
        seen: dict[str, list[int]] = {str(number): [] for number in COUNTS}
        ended = []
        for _ in range(sum(COUNTS) + len(COUNTS) * empty_final):
            result, error = answers.get(timeout=PATIENCE_S)
            assert error is None
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            if final:
                assert not response.outputs
                ended.append(response.id)
            else:
                assert response.id not in ended
                seen[response.id].append(int(result.as_numpy("LEFT")[0]))
        triton.stop_stream()
    assert answers.empty()
    assert seen == countdowns(COUNTS)
    assert sorted(ended) == (sorted(seen) if empty_final else [])


def test_an_aio_stream(server: Serving) -> None:
    import tritonclient.grpc.aio as client

    async def talk() -> None:
        async def requests() -> Any:
            for number in COUNTS:
                yield {"model_name": "countdown", "inputs": [start(client, number)], "request_id": str(number)}

        async with client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as triton:
            seen: dict[str, list[int]] = {str(number): [] for number in COUNTS}
            async for result, error in triton.stream_infer(requests()):
                assert error is None
                seen[result.get_response().id].append(int(result.as_numpy("LEFT")[0]))
        assert seen == countdowns(COUNTS)

    asyncio.run(talk())


@pytest.mark.parametrize("number", COUNTS)
def test_streams_within_a_model(server: Serving, number: int) -> None:
    import tritonclient.http as client

    with client.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=60) as triton:
        direct = triton.infer("triangles", [start(client, number)])
        assert direct.as_numpy("TOTAL").tolist() == [number * (number + 1)]
        routed = triton.infer("router", [named(client, "triangles"), start(client, number)])
        assert routed.as_numpy("TOTAL").tolist() == [number * (number + 1)]


def test_a_call_to_a_model_that_is_not_there(server: Serving) -> None:
    import tritonclient.http as client

    with (
        client.InferenceServerClient(f"127.0.0.1:{server.port}") as triton,
        pytest.raises(client.InferenceServerException) as caught,
    ):
        triton.infer("router", [named(client, "nobody"), start(client, 1)])
    text = caught.value.message()
    assert text.startswith(
        "Failed to process the request(s) for model 'router_0', message: TritonModelException: "
        "Model nobody - Error when running inference: "
        "Request for unknown model: 'nobody' is not found\n\nAt:\n"
    )
    assert "router/1/model.py(" in text


def test_code_that_leans_on_its_module_and_on_processes(server: Serving) -> None:
    import tritonclient.http as client

    with client.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=60) as triton:
        facts = triton.infer("leaning", [start(client, 1)]).as_numpy("FACTS")
    assert [fact.decode() for fact in facts] == [
        "neighbour",
        "neighbour",
        "Record(number=1)",
        "int",
        "[1, 4, 9]",
        "[1, 4, 9]",
        "[1, 4, 9]",
    ]
