"""Views are safe, memory is given back, and nothing is copied that need not be."""

from __future__ import annotations

import os
import signal
import threading
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.real_server import PATIENCE_S, Serving, binary_output, binary_request, eventually, io_config, write_model

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


@pytest.mark.parametrize("size", [4, 3000, 300_000])
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
    own, scribble = array.view(np.uint8), np.full_like(array, -7).view(np.uint8)
    for _ in range(5):
        answer = server.infer_array("scribbler", array)
        got = binary_output(answer).view(np.uint8)
        # The model may have scribbled before it returned; what it returned must be one moment's content of its array
        # or its original, and never the next request's. Every byte is either its own or the scribble's; an element may
        # be of both, because the copy and the scribble meet somewhere.
        assert np.all((got == own) | (got == scribble))
        np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)


def test_steady_traffic_does_not_grow_memory(server: Serving) -> None:
    processes = [psutil.Process(server.process.pid), *map(psutil.Process, server.stub_pids())]

    def round_of_requests(count: int) -> None:
        connection = server.connect()
        from tests.real_server import binary_request

        for size in (10, 3000, 100_000, 1_000_000):
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


def test_an_answer_from_another_requests_input_that_a_sender_keeps_is_a_copy(tmp_path: Path) -> None:
    signal = tmp_path / "signal"
    write_model(
        tmp_path / "models",
        "swaps",
        f"""
        import os
        import threading
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                array = requests[-1].inputs()[0].as_numpy()
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
                if len(requests) == 1:
                    return [answer]
                threading.Thread(target=self.scribble, args=(array, requests[1].get_response_sender())).start()
                return [answer, None]

            def scribble(self, array, sender):
                while not os.path.exists({str(signal)!r}):
                    time.sleep(0.001)
                array += 1
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
                sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        io_config(
            max_batch_size=2,
            extra="dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 9000000 }",
        ),
    )
    array = np.full((1, 1 << 21), 3, np.float32)
    path, body, headers = binary_request("swaps", array)
    with Serving(tmp_path / "models") as server:
        first, second = (HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S) for _ in range(2))
        first.request("POST", path, body, headers)
        second.request("POST", path, body, headers)
        answer = first.getresponse()  # the head: most of the tensor is still to be sent
        signal.touch()
        assert np.all(np.frombuffer(second.getresponse().read()[-array.nbytes :], np.float32) == 4)
        assert np.all(np.frombuffer(answer.read()[-array.nbytes :], np.float32) == 3)
        first.close()
        second.close()


# Answers with as many floats as its input says; kept waiting, it holds the interpreter's lock.
BIG = """
    import ctypes, os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.release = args["model_repository"] + "/release"

        def execute(self, requests):
            count = int(requests[0].inputs()[0].as_numpy()[0])
            if not count:
                pipe = os.open(self.release, os.O_RDWR)
                print("holding the lock", flush=True)
                ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(count, np.float32))])]
"""


def stream_back(server: Serving, model: str, count: int) -> int:
    """Asks for `count` floats and reads them all: how many bytes of a binary answer there were."""
    answer = server.infer_array(model, np.array([count], np.float32))
    assert answer.status == 200, answer
    return len(answer.body)


def test_memory_of_answers_that_have_been_read_goes_to_whoever_needs_it(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    write_model(tmp_path, "bigger", BIG)
    write_model(tmp_path, "echo")
    with Serving(tmp_path, "--shm-limit=256M") as server:
        # First to a request that comes in, then to a stub that has an answer to place. A request waits 0.1 s for a stub
        # to give memory back, which a busy machine may not give it; the next one has it.
        assert stream_back(server, "big", 60 << 20) > 240 << 20
        eventually(lambda: server.infer_array("echo", np.zeros(24 << 20, np.float32)).status == 200)
        assert stream_back(server, "big", 60 << 20) > 240 << 20
        assert stream_back(server, "bigger", 60 << 20) > 240 << 20
        assert stream_back(server, "big", 60 << 20) > 240 << 20


def test_an_answer_waits_for_memory_that_a_stub_without_a_processor_keeps_warm(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    write_model(tmp_path, "bigger", BIG)
    explicit = ("--model-control-mode=explicit", "--load-model=bigger")
    with Serving(tmp_path, "--shm-limit=256M", *explicit) as server:
        others = server.stub_pids()
        assert server.request("POST", "/v2/repository/models/big/load").status == 200
        (keeping,) = set(server.stub_pids()) - set(others)
        assert stream_back(server, "big", 60 << 20) > 240 << 20
        os.kill(keeping, signal.SIGSTOP)
        sizes: list[int] = []
        asking = threading.Thread(target=lambda: sizes.append(stream_back(server, "bigger", 60 << 20)))
        asking.start()
        # Longer than memory was waited for once, and shorter than it is now
        asking.join(1.5)
        waits = asking.is_alive()
        os.kill(keeping, signal.SIGCONT)
        asking.join()
        assert waits
        assert sizes[0] > 240 << 20


def test_nobody_waits_for_a_stub_that_cannot_give_anything_back(tmp_path: Path) -> None:
    release = write_model(tmp_path, "big", BIG) / "release"
    os.mkfifo(release)
    write_model(tmp_path, "echo")
    with Serving(tmp_path, "--shm-limit=256M") as server:
        # Warm memory that the stub keeps, and cannot give back while it holds the interpreter's lock
        assert stream_back(server, "big", 3 << 20) > 12 << 20
        holding = threading.Thread(target=server.infer_array, args=("big", np.zeros(1, np.float32)))
        holding.start()
        server.wait_for("holding the lock")
        refused = server.infer_array("echo", np.zeros(61 << 20, np.float32))
        assert refused.status == 503
        assert "--shm-limit" in refused.error
        assert server.infer_array("echo", np.zeros(50 << 20, np.float32)).status == 200
        release.write_bytes(b".")
        holding.join()
        assert server.infer_array("echo", np.zeros(61 << 20, np.float32)).status == 200


def test_an_idle_stub_gives_back_what_it_keeps_warm(tmp_path: Path) -> None:
    write_model(tmp_path, "big", BIG)
    with Serving(tmp_path, "--shm-limit=256M") as server:
        stream_back(server, "big", 3 << 20)
        arena = next(
            fd for fd in Path(f"/proc/{server.process.pid}/fd").iterdir() if str(fd.readlink()).startswith("/memfd:")
        )
        warm = arena.stat().st_blocks * 512
        assert warm > 12 << 20
        eventually(lambda: arena.stat().st_blocks * 512 < 1 << 20)


def test_a_model_sees_how_much_shared_memory_is_left(tmp_path: Path) -> None:
    source = """
        import numpy as np
        import c_python_backend_utils as c_utils
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                free = np.array([c_utils.shared_memory.free_memory()], np.int64)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", free)]) for _ in requests]
    """
    write_model(tmp_path, "free", source, io_config("INT64"))
    with Serving(tmp_path, "--shm-limit=64M") as server:

        def free_after(nbytes: int) -> int:
            answer = server.infer_array("free", np.zeros(nbytes // 8, np.int64), "INT64")
            return int(binary_output(answer, np.int64)[0])

        before = free_after(8)
        assert before <= 64 << 20
        assert before - free_after(16 << 20) >= 16 << 20
