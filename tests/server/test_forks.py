"""Models whose forked processes make requests to other models."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_server import Serving, io_config, write_model

# Runs the Python text of its input, with `call` and `forked` at hand, and returns what that leaves in `result`.
SCRIPT = """
    import asyncio, json, os, signal, traceback
    from multiprocessing import get_context
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def request(model, size):
        tensors = [pb_utils.Tensor("INPUT0", np.ones(size, np.float32))]
        return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=tensors)

    def outcome(response):
        if response.has_error():
            return "error: " + response.error().message()
        return [float(tensor.as_numpy().sum()) for tensor in response.output_tensors()]

    def call(size):
        return outcome(request("echo", size).exec())

    def forked(function):
        # What a function returns, or raises, in a forked process
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                got = function()
            except BaseException as error:
                got = "raised: " + str(error)
            with os.fdopen(writing, "w") as file:
                json.dump(got, file)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            got = json.load(file)
        os.waitpid(child, 0)
        return got

    class TritonPythonModel:
        def initialize(self, args):
            self.early = get_context("fork").Pool(1)

        def execute(self, requests):
            responses = []
            for this in requests:
                names = dict(globals(), self=self, this=this)
                exec(this.inputs()[0].as_numpy()[0].decode(), names)
                text = np.array([json.dumps(names["result"]).encode()], dtype=object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)]))
            return responses

        def finalize(self):
            self.early.terminate()
"""

COUNTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for one in requests:
                sender = one.get_response_sender()
                for number in range(len(one.inputs()[0].as_numpy())):
                    tensor = pb_utils.Tensor("OUTPUT0", np.full(3000, number, np.float32))
                    sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(repository, "counter", COUNTER, io_config(extra="model_transaction_policy { decoupled: true }"))
    write_model(repository, "script", SCRIPT, io_config("STRING", "1"))
    with Serving(repository) as running:
        yield running


def run(server: Serving, source: str) -> Any:
    """What `source` leaves in `result`."""
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [source]}
    answer = server.infer_json("script", [tensor])
    assert answer.status == 200, answer
    return json.loads(answer.json()["outputs"][0]["data"][0])


def test_a_pool_of_processes(server: Serving) -> None:
    source = """
with get_context("fork").Pool(3) as pool:
    result = pool.map(call, [0, 1, 100, 1_000_000] * 5)
result += [call(7)]
"""
    assert run(server, source) == [[0.0], [1.0], [100.0], [1_000_000.0]] * 5 + [[7.0]]


def test_the_stub_and_its_copy_call_at_the_same_time(server: Serving) -> None:
    source = """
with get_context("fork").Pool(2) as pool:
    theirs = pool.map_async(call, [3] * 100)
    ours = [call(4) for _ in range(100)]
    result = theirs.get() == [[3.0]] * 100 and ours == [[4.0]] * 100
"""
    assert run(server, source) is True


def test_failures_are_answers_there_too(server: Serving) -> None:
    assert "Request for unknown model: 'nosuch' is not found" in run(
        server, "result = forked(lambda: outcome(request('nosuch', 1).exec()))"
    )


def test_a_fork_of_a_fork(server: Serving) -> None:
    assert run(server, "result = forked(lambda: [call(1), forked(lambda: call(2)), call(3)])") == [[1.0], [2.0], [3.0]]


def test_coroutines_and_iterators_of_a_forked_process(server: Serving) -> None:
    source = """
async def main():
    answers = await asyncio.gather(*(request("echo", size).async_exec() for size in range(5)))
    return [outcome(answer) for answer in answers]
result = forked(lambda: asyncio.run(main()))
"""
    assert run(server, source) == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    source = """
def iterate():
    answers = request("counter", 300).exec(decoupled=True)
    return [[outcome(answer) for answer in answers], len(list(answers))]
result = forked(iterate)
"""
    assert run(server, source) == [[[number * 3000.0] for number in range(300)] + [[]], 301]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "this.get_response_sender().send(pb_utils.InferenceResponse([]), 1)",
            "Model instance 'script_0' can do this only in its own process, not in one that it has forked",
        ),
        ("pb_utils.is_model_ready('echo')", "a process that the model has forked cannot ask the server"),
    ],
)
def test_what_a_forked_process_cannot_do(server: Serving, what: str, text: str) -> None:
    got = run(server, f"result = forked(lambda: {what})")
    assert got.startswith("raised: ")
    assert text in got
    assert run(server, "result = call(5)") == [5.0]


def test_forked_processes_can_be_terminated(server: Serving) -> None:
    source = """
process = get_context("fork").Process(target=signal.pause)
process.start()
process.terminate()
process.join()
result = process.exitcode
"""
    assert run(server, source) == -signal.SIGTERM


def test_a_forked_process_that_leaves_execute_ends_as_any_other(server: Serving) -> None:
    source = """
child = os.fork()
if not child:
    raise SystemExit(3)
result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    assert run(server, source) == 3
    assert run(server, "result = call(5)") == [5.0]
    assert "SystemExit" not in server.output


def test_a_forked_process_may_log_whatever_other_threads_do(server: Serving) -> None:
    source = """
import gc
(control,) = [one for one in gc.get_objects() if type(one).__name__ == "Control"]
with control._sending:  # as a thread has it that is just sending
    result = forked(lambda: pb_utils.Logger.log_info("a line of a forked process"))
"""
    assert run(server, source) is None
    server.wait_for("a line of a forked process")


def test_a_process_forked_in_initialize_makes_no_requests(server: Serving) -> None:
    source = """
try:
    result = self.early.apply(call, (1,))
except pb_utils.TritonModelException as error:
    result = str(error)
"""
    assert run(server, source) == "BLS is only supported during the 'execute' function."


def test_a_forked_process_that_dies_leaves_the_stub_as_it_was(server: Serving) -> None:
    # More of them than the stub would have threads and descriptors for, if it kept them.
    source = """
for _ in range(50):
    child = os.fork()
    if not child:
        call(1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
result = [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]
"""
    first = run(server, source)
    second = run(server, source)
    assert second[0] <= first[0] + 5
    assert second[1] <= first[1] + 5
    assert run(server, "result = call(6)") == [6.0]
