"""Models that use what they have inherited and must not touch: descriptors, rings, shared memory."""

from __future__ import annotations

import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, io_config, write_model

# Two descriptors are in a stub's command line; its channel is found as a stray pointer would find it.
SCRIBBLER = """
    import ctypes
    import gc
    import os
    import socket
    import time
    import triton_python_backend_utils as pb_utils

    ARENA, CONTROL = map(int, open("/proc/self/cmdline").read().split("\\0")[4:6])

    def channel():
        return next(thing for thing in gc.get_objects() if type(thing).__name__ == "Channel")

    def responses():
        return channel()._writer._doorbell

    def arena_mappings():
        for line in open("/proc/self/maps"):
            if "memfd:stubserve" in line:
                addresses, rights = line.split()[:2]
                start, end = (int(one, 16) for one in addresses.split("-"))
                yield start, end, rights

    def follow(order):
        if order == "text on the control socket":
            os.write(CONTROL, b"this is a line for a log file\\n")
            time.sleep(1000)
        if order == "a message that is none":
            os.write(CONTROL, b"\\0\\0\\0\\1\\x80")
            time.sleep(1000)
        if order == "close the control socket":
            socket.socket(fileno=CONTROL).shutdown(socket.SHUT_WR)
            time.sleep(1000)
        if order == "become another program":
            os.execv("/bin/sleep", ["sleep", "1000"])
        if order == "ring without a record":
            os.write(responses(), (1).to_bytes(8, "little"))
            time.sleep(1000)
        if order == "ring for a record that was read long ago":
            os.write(responses(), (1 << 31).to_bytes(8, "little"))
            time.sleep(1000)
        if order == "rubbish as a result":
            channel().send(b"\\x93\\x01\\x02\\xa5three")
            time.sleep(1000)
        if order == "block the doorbell and die":
            os.set_blocking(responses(), True)
            os._exit(5)
        if order == "fill the words":
            words = channel()._words
            words[:-1] = memoryview(b"\\xff" * (words.nbytes - 8)).cast("Q")
        if order == "write to where the arena begins":
            ctypes.memset(min(arena_mappings())[0], 0, 4096)
        if order.startswith("write over all with "):
            for start, end, rights in arena_mappings():
                if "w" in rights:
                    ctypes.memset(start, int(order.split()[-1]), end - start)
        if order == "shrink the arena":
            os.ftruncate(ARENA, 0)
        if order == "write to the arena":
            os.write(ARENA, b"this is a line for a log file\\n" * 100)

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                words = request.inputs()[0].as_numpy()
                follow(words.flatten()[0].decode())
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", words)]))
            return answers
"""


# By order: how the stub dies of it
DEATHS = {
    "text on the control socket": "because it sent something that is not a message",
    "a message that is none": "because it sent something that is not a message",
    "close the control socket": "because it has closed its line to the server",
    "become another program": "because it has closed its line to the server",
    "ring without a record": "because its ring holds something that is not a message",
    "ring for a record that was read long ago": "because its ring holds something that is not a message",
    "rubbish as a result": "because its ring holds something that is not a message",
    "block the doorbell and die": "it exited with code 5",
    "write to where the arena begins": "it was killed by signal 11 (SIGSEGV)",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Serving:
    repository = tmp_path_factory.mktemp("models")
    # A model for each death, or they would wait longer and longer for the next.
    for number in range(len(DEATHS)):
        write_model(repository, f"scribbler{number}", SCRIBBLER, io_config("STRING", "1"))
    write_model(repository, "other")
    with Serving(repository) as running:
        yield running


def order(server: Serving, word: str, number: int = 0) -> Answer:
    server.wait_until_ready()
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [word]}
    return server.infer_json(f"scribbler{number}", [tensor])


def check_others(server: Serving) -> None:
    array = np.arange(300_000, dtype=np.float32)
    assert server.infer_array("other", array).body.endswith(array.tobytes())
    assert server.metrics().status == 200


@pytest.mark.parametrize("word", DEATHS)
def test_a_stub_that_cannot_be_talked_to_is_replaced(server: Serving, word: str) -> None:
    number = list(DEATHS).index(word)
    answer = order(server, word, number)
    assert answer.status == 500
    assert DEATHS[word] in answer.error
    check_others(server)
    assert order(server, "nothing", number).status == 200


def test_words_for_both_sides_are_no_ones_memory(server: Serving) -> None:
    pids = server.stub_pids()
    assert order(server, "fill the words").status == 200
    assert order(server, "nothing").status == 200
    assert server.stub_pids() == pids


WAITER = """
    import time
    from pathlib import Path
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            print("waiting", flush=True)
            while not Path({go!r}).exists():
                time.sleep(0.001)
            array = requests[0].inputs()[0].as_numpy()
            # An answer in its own segment, and one in that of ingress
            return [pb_utils.InferenceResponse([
                pb_utils.Tensor("OUTPUT0", array), pb_utils.Tensor("OUTPUT1", array + 1)
            ])]
"""


@pytest.mark.parametrize("value", [0, 255])
def test_a_model_that_writes_over_all_that_it_can_takes_no_other_down(tmp_path: Path, value: int) -> None:
    go, models = tmp_path / "go", tmp_path / "models"
    write_model(models, "scribbler0", SCRIBBLER, io_config("STRING", "1"))
    write_model(models, "other")
    write_model(models, "fresh")
    two_outputs = io_config(extra='output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]')
    write_model(models, "waiter", WAITER.format(go=str(go)), two_outputs)
    flags = ["--shm-limit=16M", "--model-control-mode=explicit", "--exit-timeout-secs=5"]
    flags += [f"--load-model={name}" for name in ("scribbler0", "other", "waiter")]
    with Serving(models, *flags) as server:
        assert order(server, "nothing").status == 200
        check_others(server)
        array = np.arange(300_000, dtype=np.float32)
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(server.infer_array("waiter", array)))
        waiting.start()
        server.wait_for("waiting")
        end = order(server, f"write over all with {value}")
        assert end.status == 500
        assert "Stub process 'scribbler0_0' is not healthy" in end.error
        assert "because its shared memory has been written over" in end.error
        go.touch()
        waiting.join(PATIENCE_S)
        assert answers[0].body.endswith(array.tobytes() + (array + 1).tobytes())
        for name in ("fresh", "other", "waiter", "scribbler0"):
            assert server.request("POST", f"/v2/repository/models/{name}/load", b"{}").status == 200
        check_others(server)
        assert server.infer_array("fresh", array).body.endswith(array.tobytes())
        assert order(server, "nothing").status == 200


@pytest.mark.parametrize("word", ["shrink the arena", "write to the arena"])
def test_the_arena_is_no_file_to_work_with(server: Serving, word: str) -> None:
    answer = order(server, word)
    assert answer.status == 500
    assert "Error: [Errno" in answer.error
    check_others(server)
    assert order(server, "nothing").status == 200


def test_a_model_that_closes_everything_while_it_loads_is_not_waited_for(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "closer",
        """
        import os
        import time

        time.sleep(0.2)  # as imports take time; the stub's own thread waits for messages by now
        os.closerange(3, 1000)

        class TritonPythonModel:
            def execute(self, requests):
                return []
        """,
    )
    with Serving(tmp_path, "--exit-on-error=false") as server:
        server.wait_for("it exited with code 1 while importing its model")


def test_no_descriptors_are_left(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server:
        (stub,) = server.stub_pids()
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        _, hard = limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        # The dead stub's six are not enough for another: its process needs some while it is made.
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (before, hard))
        os.kill(stub, signal.SIGKILL)
        server.wait_for("start of instance 'echo_0' failed, next try in 0.2 s: .*: Too many open files")
        server.wait_for("start of instance 'echo_0' failed, next try in 0.4 s: .*: Too many open files")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        server.wait_for("instance 'echo_0' is back")
        assert len(list(descriptors.iterdir())) == before


def test_a_restart_that_goes_wrong_in_any_way_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    write_model(
        tmp_path / "models",
        "liar",
        f"""
        import os
        from pathlib import Path

        flag = Path({str(flag)!r})
        if flag.exists():
            flag.unlink()
            message = b"\\x81\\xa4kind\\xa5ready"
            os.write(int(open("/proc/self/cmdline").read().split("\\0")[5]), len(message).to_bytes(4, "big") + message)

        class TritonPythonModel:
            def execute(self, requests):
                flag.touch()
                os._exit(3)
        """,
    )
    with Serving(tmp_path / "models") as server:
        assert server.infer_array("liar", np.zeros(1, np.float32)).status == 500
        server.wait_for("instance 'liar_0' is back")
        assert not flag.exists()
