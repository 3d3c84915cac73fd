"""Views are safe, memory is given back, and nothing is copied that need not be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.serving import Serving, binary_output, write_model

KEEPER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if array[0] == -1:
                    # The first element of every array that was kept: they must not have changed.
                    kept = self.kept
                    out = np.array([one[0] for one in kept] + [one.sum() / one[0] for one in kept], np.float32)
                elif array[0] == -2:
                    self.kept = []
                    out = np.zeros(1, np.float32)
                else:
                    self.kept.append(array)
                    out = array
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
            return answers
"""

WRITER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array += 1
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return answers
"""

SCRIBBLER = """
    import threading
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.last = None

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            self.last = array
            threading.Thread(target=self.scribble, args=(array,)).start()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]

        def scribble(self, array):
            # Long after the answer has left, and also right now: neither may be seen by anybody.
            for _ in range(200):
                array[:] = -7
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Serving:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "keeper", KEEPER)
    write_model(repository, "writer", WRITER)
    write_model(repository, "scribbler", SCRIBBLER)
    write_model(repository, "echo")
    with Serving(repository) as running:
        yield running


@pytest.mark.parametrize("size", [4, 1000, 300_000])
def test_inputs_are_writable_and_a_write_stays_with_its_request(server: Serving, size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(binary_output(server.infer_array("writer", array)), array + 1)


def test_memory_that_a_model_keeps_is_not_used_again(server: Serving) -> None:
    size = 200_000
    for number in range(1, 6):
        array = np.full(size, number, np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("keeper", array)), array)
    answer = binary_output(server.infer_array("keeper", np.array([-1], np.float32)))
    np.testing.assert_array_equal(answer, [1, 2, 3, 4, 5, size, size, size, size, size])
    binary_output(server.infer_array("keeper", np.array([-2], np.float32)))


def test_what_a_model_writes_after_its_answer_is_not_seen(server: Serving) -> None:
    array = np.arange(500_000, dtype=np.float32)
    for _ in range(5):
        answer = server.infer_array("scribbler", array)
        got = binary_output(answer)
        # The model may have scribbled before it returned; what it returned must be one moment's content of its array
        # or its original, and never the next request's. Every element is either its own or the scribble.
        assert np.all((got == array) | (got == -7))
        np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)


def test_steady_traffic_does_not_grow_memory(server: Serving) -> None:
    processes = [psutil.Process(server.process.pid), *map(psutil.Process, server.stub_pids())]

    def round_of_requests(count: int) -> None:
        connection = server.connect()
        from tests.serving import binary_request

        for size in (10, 1000, 100_000, 1_000_000):
            path, body, headers = binary_request("echo", np.zeros(size, np.float32))
            for _ in range(count):
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                assert response.status == 200
                response.read()
        connection.close()

    round_of_requests(30)
    before = [process.memory_info().rss for process in processes]
    round_of_requests(150)
    for process, rss in zip(processes, before, strict=True):
        assert process.memory_info().rss < rss + (4 << 20)


def test_a_plain_stub_imports_only_what_it_needs(tmp_path: Path) -> None:
    """What a stub imports, every instance pays for: asyncio alone is 7 MiB, and brings OpenSSL."""
    write_model(
        tmp_path,
        "plain",
        """
        import sys
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                heavy = [name for name in ("asyncio", "ssl", "logging", "subprocess", "email") if name in sys.modules]
                print("HEAVY", heavy, flush=True)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1, np.float32))])]
        """,
    )
    with Serving(tmp_path) as server:
        assert server.infer_array("plain", np.zeros(1, np.float32)).status == 200
        server.wait_for(r"HEAVY \[\]")
