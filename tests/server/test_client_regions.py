"""Clients' shared memory: inputs and outputs that are named, not sent."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from tests.client_memory import PAGE, SharedFile
from tests.real_server import Answer, Serving, binary_output, eventually, io_config, write_model
from tests.server.grpc_calls import connected
from tests.server.privileges import needs_setpriv, unprivileged

# Writes to its input before it answers with twice what that was.
SCRIBBLES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                doubled = array * 2
                array[:] = -1
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", doubled)]))
            return responses
"""
# Answers with the input of the request before.
KEEPS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        last = None

        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                answer = array if self.last is None else self.last
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]))
                self.last = array
            return responses
"""
# Says which files it waits for before it looks at its inputs: one is there when it executes, and it makes the other.
WAITS = """
    import os
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "executes"), "w").close()
            while not os.path.exists(os.path.join(self.folder, "go")):
                time.sleep(0.005)
            print("batch of", len(requests), flush=True)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + 1)])
                for request in requests
            ]
"""
# Sends its input three times, each time one more.
STREAMS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for more in range(3):
                    tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + more)
                    sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name="scribbles", inputs=request.inputs(), requested_output_names=["OUTPUT0"]
                )
                responses.append(call.exec())
            return responses
"""
ENSEMBLE = """
    platform: "ensemble"
    input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "SAME" data_type: TYPE_FP32 dims: [ -1 ] } ]
    ensemble_scheduling { step [
        { model_name: "scribbles" model_version: -1 input_map { key: "INPUT0" value: "IN" }
          output_map { key: "OUTPUT0" value: "DOUBLED" } },
        { model_name: "echo" model_version: -1 input_map { key: "INPUT0" value: "IN" }
          output_map { key: "OUTPUT0" value: "SAME" } }
    ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 50000 }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(repository, "strings", config=io_config("STRING"))
    write_model(repository, "scribbles", SCRIBBLES)
    write_model(repository, "keeps", KEEPS)
    write_model(repository, "waits", WAITS, io_config("FP32", "-1", 4, BATCHING))
    write_model(repository, "streams", STREAMS, io_config(extra=DECOUPLED))
    write_model(repository, "calls", CALLS)
    native = repository / "native" / "1"
    native.mkdir(parents=True)
    (repository / "native" / "config.pbtxt").write_text(io_config().replace('"python"', '"identity"'))
    ensemble = repository / "both" / "1"
    ensemble.mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    with Serving(repository, "--allow-client-shm") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(autouse=True)
def clean(server: Serving) -> Iterator[None]:
    """Every test leaves the server without regions, and with the stubs that it had."""
    before = server.stub_pids()
    yield
    assert server.request("POST", "/v2/systemsharedmemory/unregister").status == 200
    eventually(lambda: rows(server) == [])
    assert server.stub_pids() == before


def rows(server: Serving) -> Any:
    return server.get("/v2/systemsharedmemory/status").json()


def register(server: Serving, name: str, file: SharedFile, **more: Any) -> Answer:
    body = {"key": file.key, "byte_size": file.nbytes, **more}
    return server.request("POST", f"/v2/systemsharedmemory/region/{name}/register", json.dumps(body).encode())


def piece(region: str, nbytes: int, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": nbytes, "shared_memory_offset": offset}


def infer(
    server: Serving, model: str, given: dict[str, Any], wanted: dict[str, Any] | None, shape: list[int], **more: Any
) -> Answer:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "parameters": given, **more}
    outputs = {} if wanted is None else {"outputs": [{"name": "OUTPUT0", "parameters": wanted}]}
    return server.infer_json(model, [tensor], **outputs)


def floats(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)


@pytest.mark.parametrize("count", [4, 2000, 3000, 1 << 18])
@pytest.mark.parametrize("model", ["echo", "native"])
def test_in_and_out(server: Serving, model: str, count: int) -> None:
    """Tensors of all the sizes that go different ways."""
    with SharedFile(floats(count)) as given, SharedFile(4 * count) as wanted:
        assert register(server, "in", given).status == register(server, "out", wanted).status == 200
        for first in (0, 5):
            given.put(floats(count, first))
            answer = infer(server, model, piece("in", 4 * count), piece("out", 4 * count), [count])
            assert answer.status == 200, answer
            assert answer.json()["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [count]}]
            assert (wanted.array() == floats(count, first)).all()


def test_only_the_input_or_only_the_output(server: Serving) -> None:
    with SharedFile(floats(3000)) as given, SharedFile(12000) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        answer = infer(server, "echo", piece("in", 12000), {"binary_data": True}, [3000])
        assert (binary_output(answer) == floats(3000)).all()
        outputs = [{"name": "OUTPUT0", "parameters": piece("out", 12000)}]
        answer = server.infer_array("echo", floats(3000, 7), outputs=outputs)
        assert answer.status == 200
        assert (wanted.array() == floats(3000, 7)).all()


def test_offsets(server: Serving) -> None:
    """Also one at which no float may lie."""
    with SharedFile(b"\0" * 3 + floats(9000).tobytes()) as file:
        register(server, "all", file)
        register(server, "part", file, offset=3, byte_size=36000)
        for name, offset in ("all", 3 + 400), ("part", 400):
            answer = infer(server, "echo", piece(name, 12000, offset), {"binary_data": True}, [3000])
            assert (binary_output(answer) == floats(3000, 100)).all()
        answer = infer(server, "scribbles", piece("part", 12000), piece("part", 12000, 12000), [3000])
        assert answer.status == 200, answer
        expected = floats(9000)
        expected[3000:6000] = 2 * floats(3000)
        assert os.pread(file.descriptor, file.nbytes, 3) == expected.tobytes()


@pytest.mark.parametrize("shift", [0, 4, 4000])
def test_an_output_over_its_input(server: Serving, shift: int) -> None:
    with SharedFile(floats(8000)) as file:
        register(server, "one", file)
        answer = infer(server, "echo", piece("one", 16000), piece("one", 16000, shift), [4000])
        assert answer.status == 200, answer
        assert (file.array()[shift // 4 : shift // 4 + 4000] == floats(4000)).all()


@pytest.mark.parametrize("count", [100, 5000, 100_000])
def test_a_model_that_writes_to_its_input(server: Serving, count: int) -> None:
    with SharedFile(floats(count)) as given, SharedFile(4 * count) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        for first in (0, 1, 2):
            given.put(floats(count, first))
            answer = infer(server, "scribbles", piece("in", 4 * count), piece("out", 4 * count), [count])
            assert answer.status == 200
            assert (given.array() == floats(count, first)).all()
            assert (wanted.array() == 2 * floats(count, first)).all()


def test_a_model_that_keeps_its_input(server: Serving) -> None:
    """What it has is that request's, whatever its client does with the region after the answer."""
    with SharedFile(floats(5000)) as given, SharedFile(20000) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        for first in range(6):
            given.put(floats(5000, first))
            assert infer(server, "keeps", piece("in", 20000), piece("out", 20000), [5000]).status == 200
            assert (wanted.array() == floats(5000, max(0, first - 1))).all()


def test_steps_of_an_ensemble_each_have_their_own(server: Serving) -> None:
    with SharedFile(floats(70_000)) as given, SharedFile(280_000) as one, SharedFile(280_000) as other:
        for name, file in ("in", given), ("one", one), ("other", other):
            register(server, name, file)
        tensor = {"name": "IN", "datatype": "FP32", "shape": [70_000], "parameters": piece("in", 280_000)}
        outputs = [
            {"name": "DOUBLED", "parameters": piece("one", 280_000)},
            {"name": "SAME", "parameters": piece("other", 280_000)},
        ]
        answer = server.infer_json("both", [tensor], outputs=outputs)
        assert answer.status == 200, answer
        assert (one.array() == 2 * floats(70_000)).all()
        assert (other.array() == given.array()).all()
        small = {**tensor, "shape": [4], "parameters": piece("in", 16)}
        assert server.infer_json("both", [small], outputs=outputs).status == 200
        assert (one.array()[:4] == 2 * floats(4)).all()
        outputs[0]["parameters"] = piece("one", 16)
        answer = server.infer_json("both", [tensor], outputs=outputs)
        assert (answer.status, "'DOUBLED' (16 bytes) should be at least 280000 bytes" in answer.error) == (500, True)


def test_a_model_passes_it_on_to_another(server: Serving) -> None:
    with SharedFile(floats(5000)) as given, SharedFile(20000) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        assert infer(server, "calls", piece("in", 20000), piece("out", 20000), [5000]).status == 200
        assert (wanted.array() == 2 * floats(5000)).all()
        assert (given.array() == floats(5000)).all()


@pytest.mark.parametrize("count", [3, 1000, 60_000])
def test_strings(server: Serving, count: int) -> None:
    texts = np.array([b"text %d" % number for number in range(count)], object)
    data = serialize_byte_tensor(texts).item()
    with SharedFile(data) as given, SharedFile(len(data)) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        parts = piece("in", len(data)), piece("out", len(data))
        answer = infer(server, "strings", *parts, [count], datatype="BYTES")
        assert answer.status == 200, answer
        assert os.pread(wanted.descriptor, wanted.nbytes, 0) == data
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            asked = triton_grpc.InferInput("INPUT0", [count], "BYTES")
            asked.set_shared_memory("in", len(data))
            result = client.infer("strings", [asked])
            assert (result.as_numpy("OUTPUT0") == texts).all()
            # The last one ends behind what is said of the region
            cut = r"incomplete string data for inference input 'INPUT0', expecting string of length \d+ but only \d+"
            asked.set_shared_memory("in", len(data) - 1)
            with pytest.raises(InferenceServerException, match=cut):
                client.infer("strings", [asked])
            answer = infer(server, "strings", piece("in", len(data) - 1), parts[1], [count], datatype="BYTES")
            assert (answer.status, re.match(cut, answer.error) is not None) == (400, True), answer.error
            asked.set_shared_memory("in", len(data))
            # Bytes that are no strings
            given.put(np.full(len(data), 255, np.uint8))
            with pytest.raises(InferenceServerException, match="string elements for inference input"):
                client.infer("strings", [asked])
        answer = infer(server, "strings", *parts, [count], datatype="BYTES")
        assert (answer.status, "string elements for inference input" in answer.error) == (400, True)


def test_a_request_in_much_json(server: Serving) -> None:
    """Which a process of its own reads."""
    with SharedFile(floats(5000)) as given, SharedFile(20000) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [5000], "parameters": piece("in", 20000)}
        outputs = [{"name": "OUTPUT0", "parameters": piece("out", 20000)}]
        padding = {"parameters": {"text": "x" * 300_000}}
        assert server.infer_json("echo", [tensor], outputs=outputs, **padding).status == 200
        assert (wanted.array() == floats(5000)).all()
        outputs = [{"name": "OUTPUT0", "parameters": piece("none", 20000)}]
        answer = server.infer_json("echo", [tensor], outputs=outputs, **padding)
        assert (answer.status, answer.error) == (404, "Unable to find shared memory region: 'none'")


@pytest.mark.parametrize("count", [10, 4000])
def test_a_stream_writes_one_response_after_the_other(server: Serving, count: int) -> None:
    with SharedFile(floats(count)) as given, SharedFile(4 * count) as wanted:
        register(server, "in", given)
        register(server, "out", wanted)
        answers: list[Any] = []
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            asked = triton_grpc.InferInput("INPUT0", [count], "FP32")
            asked.set_shared_memory("in", 4 * count)
            output = triton_grpc.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory("out", 4 * count)
            client.start_stream(lambda result, error: answers.append(error or result))
            client.async_stream_infer("streams", [asked], outputs=[output])
            eventually(lambda: len(answers) == 3)
            client.stop_stream()
        assert all(list(answer.get_response().raw_output_contents) == [b""] for answer in answers), answers
        assert (wanted.array() == floats(count, 2)).all()


def test_one_of_a_batch_loses_its_memory(server: Serving, tmp_path: Path) -> None:
    """The others are answered as if nothing had happened, by the stub that they had."""
    folder = Path(server.command[4]) / "waits"
    for name in "executes", "go":
        (folder / name).unlink(missing_ok=True)
    count = 8 * PAGE
    with SharedFile(floats(count)) as good, SharedFile(floats(count)) as bad, SharedFile(4 * count) as wanted:
        for name, file in ("good", good), ("bad", bad), ("out", wanted):
            register(server, name, file)
        with ThreadPoolExecutor(4) as threads:
            asked = [
                threads.submit(infer, server, "waits", piece(name, 4 * count), {"binary_data": True}, [1, count])
                for name in ("good", "bad", "good", "bad")
            ]
            eventually((folder / "executes").exists)
            bad.shrink(PAGE)
            (folder / "go").touch()
            answers = [one.result() for one in asked]
        assert [answer.status for answer in answers] == [200, 400, 200, 400]
        for answer in answers[::2]:
            assert (binary_output(answer) == floats(count, 1)).all()
        assert "has become smaller" in answers[1].error
        # And its next request is refused at once.
        answer = infer(server, "waits", piece("bad", 4 * count), None, [1, count])
        assert (answer.status, "'bad' is smaller than when it was registered" in answer.error) == (400, True)
        answer = infer(server, "waits", piece("good", 4 * count), piece("bad", 4 * count), [1, count])
        assert (answer.status, "'bad' is smaller than when it was registered" in answer.error) == (400, True)


def test_the_memory_for_an_output_goes_away(server: Serving) -> None:
    folder = Path(server.command[4]) / "waits"
    for name in "executes", "go":
        (folder / name).unlink(missing_ok=True)
    for count in (8 * PAGE, 100):
        with SharedFile(floats(count)) as given, SharedFile(4 * count) as wanted, ThreadPoolExecutor(1) as thread:
            register(server, f"in{count}", given)
            register(server, f"out{count}", wanted)
            parts = piece(f"in{count}", 4 * count), piece(f"out{count}", 4 * count)
            asked = thread.submit(infer, server, "waits", *parts, [1, count])
            eventually((folder / "executes").exists)
            wanted.shrink(4)
            (folder / "go").touch()
            answer = asked.result()
            assert answer.status in (400, 500), answer
            assert "smaller" in answer.error
        for name in "executes", "go":
            (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("count", [9000, 16])
def test_a_region_that_is_used_is_unregistered(server: Serving, count: int) -> None:
    """The request goes on, and the region is listed until it is over, also if a small input has been read at once."""
    folder = Path(server.command[4]) / "waits"
    for name in "executes", "go":
        (folder / name).unlink(missing_ok=True)
    with SharedFile(floats(count)) as given, ThreadPoolExecutor(1) as thread:
        register(server, "in", given)
        asked = thread.submit(infer, server, "waits", piece("in", 4 * count), {"binary_data": True}, [1, count])
        eventually((folder / "executes").exists)
        os.unlink(given.path)
        assert server.request("POST", "/v2/systemsharedmemory/region/in/unregister").status == 200
        assert [row["name"] for row in rows(server)] == ["in"]
        answer = infer(server, "echo", piece("in", 4 * count), None, [count])
        assert (answer.status, answer.error) == (404, "Unable to find shared memory region: 'in'")
        (folder / "go").touch()
        assert (binary_output(asked.result()) == floats(count, 1)).all()
        eventually(lambda: rows(server) == [])
        # Nobody has the file open any more.
        pids = [server.process.pid, *server.stub_pids()]
        eventually(lambda: not any(given.name in link for pid in pids for link in open_files(pid)))


def open_files(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            continue
    return [*found, Path(f"/proc/{pid}/maps").read_text()]


def test_triton_client_over_both_protocols(server: Serving) -> None:
    values = floats(100_000)
    modules: tuple[tuple[Any, int], ...] = ((triton_http, server.port), (triton_grpc, server.grpc_port))
    for number, (module, port) in enumerate(modules):
        given = shared_memory.create_shared_memory_region("given", f"region-given-{os.getpid()}-{number}", 400_000)
        wanted = shared_memory.create_shared_memory_region("wanted", f"region-wanted-{os.getpid()}-{number}", 400_000)
        try:
            with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
                assert "system_shared_memory" in str(client.get_server_metadata())
                client.register_system_shared_memory("given", given._shm_key, 400_000)
                client.register_system_shared_memory("wanted", wanted._shm_key, 400_000)
                status = str(client.get_system_shared_memory_status())
                assert "given" in status
                assert "wanted" in status
                shared_memory.set_shared_memory_region(given, [values])
                asked = module.InferInput("INPUT0", [100_000], "FP32")
                asked.set_shared_memory("given", 400_000)
                output = module.InferRequestedOutput("OUTPUT0")
                output.set_shared_memory("wanted", 400_000)
                for _ in range(3):
                    client.infer("scribbles", [asked], outputs=[output])
                found = shared_memory.get_contents_as_numpy(wanted, np.float32, [100_000])
                assert (found == 2 * values).all()
                del found
                client.unregister_system_shared_memory("given")
                client.unregister_system_shared_memory()
                with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'given'"):
                    client.infer("scribbles", [asked], outputs=[output])
                with pytest.raises(InferenceServerException, match="GPUs not supported"):
                    client.register_cuda_shared_memory("cuda", b"x" * 64, 0, 64)
        finally:
            shared_memory.destroy_shared_memory_region(given)
            shared_memory.destroy_shared_memory_region(wanted)


def test_classes_do_not_go_there(server: Serving) -> None:
    with SharedFile(floats(10)) as file:
        register(server, "one", file)
        answer = infer(server, "echo", piece("one", 40), {**piece("one", 40), "classification": 1}, [10])
        assert (answer.status, answer.error) == (
            400,
            "Output can't set both 'shared_memory_region' and 'classification'",
        )


def test_a_stub_that_starts_anew_gets_the_regions(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--allow-client-shm") as server, SharedFile(floats(5000)) as given:
        server.wait_until_ready()
        register(server, "in", given)
        for _ in range(2):
            answer = infer(server, "echo", piece("in", 20000), {"binary_data": True}, [5000])
            assert (binary_output(answer) == floats(5000)).all()
            (before,) = server.stub_pids()
            os.kill(before, signal.SIGKILL)
            eventually(lambda old=before: [pid for pid in server.stub_pids() if pid != old])
            eventually(lambda: server.get("/v2/models/echo/ready").status == 200)


def test_the_response_cache_is_not_asked(repository: Path) -> None:
    write_model(repository, "echo", config=io_config(extra="response_cache { enable: true }"))
    with Serving(repository, "--allow-client-shm", "--cache-config=local,size=10000000") as server:
        server.wait_until_ready()
        for count in (4, 5000):
            with SharedFile(floats(count)) as given, SharedFile(4 * count) as wanted:
                register(server, f"in{count}", given)
                register(server, f"out{count}", wanted)
                for first in (0, 0, 3):
                    given.put(floats(count, first))
                    wanted.put(np.zeros(count, np.float32))
                    parts = piece(f"in{count}", 4 * count), piece(f"out{count}", 4 * count)
                    assert infer(server, "echo", *parts, [count]).status == 200
                    assert (wanted.array() == floats(count, first)).all()
        assert server.statistics("echo")["inference_stats"]["cache_hit"]["count"] == 0
        for _ in range(2):
            assert server.infer_array("echo", floats(3)).status == 200
        assert server.statistics("echo")["inference_stats"]["cache_hit"]["count"] == 1


def test_without_the_flag(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server, SharedFile(floats(4)) as file:
        server.wait_until_ready()
        assert "system_shared_memory" not in server.get("/v2").json()["extensions"]
        answer = register(server, "in", file)
        assert (answer.status, answer.error) == (
            501,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
        assert server.request("POST", "/v2/systemsharedmemory/unregister").status == 501
        assert server.request("POST", "/v2/cudasharedmemory/unregister").status == 501
        assert server.request("POST", "/v2/cudasharedmemory/region/a/register", b"{}").status == 501
        assert rows(server) == server.get("/v2/cudasharedmemory/status").json() == []
        answer = server.get("/v2/systemsharedmemory/region/in/status")
        assert (answer.status, answer.error) == (404, "Unable to find system shared memory region: 'in'")
        answer = infer(server, "echo", piece("in", 16), None, [4])
        assert (answer.status, answer.error) == (404, "Unable to find shared memory region: 'in'")


def test_a_region_is_registered_once(server: Serving) -> None:
    """Under a name; a file may have several, as long as it likes."""
    with SharedFile(floats(4)) as one, SharedFile(floats(4, 9)) as other:
        assert register(server, "in", one).status == 200
        again = register(server, "in", other)
        assert (again.status, again.error) == (400, "shared memory region 'in' already in manager")
        answer = infer(server, "echo", piece("in", 16), {"binary_data": True}, [4])
        assert (binary_output(answer) == floats(4)).all()
        assert register(server, "the-same-file", one).status == 200
        assert server.request("POST", "/v2/systemsharedmemory/region/in/unregister").status == 200
        answer = infer(server, "echo", piece("the-same-file", 16), {"binary_data": True}, [4])
        assert (binary_output(answer) == floats(4)).all()


@pytest.mark.parametrize("shift", [-2000, 0, 2000])
def test_regions_that_overlap(server: Serving, shift: int) -> None:
    """An output over its input, where each is in a region of its own of the same file."""
    count, before = 4000, 8 * 1024
    with SharedFile(floats(10_000)) as file:
        assert register(server, "in", file, offset=before, byte_size=4 * count).status == 200
        assert register(server, "out", file, offset=before + 4 * shift, byte_size=4 * count).status == 200
        # It answers with what it was given, so one is copied over the other.
        answer = infer(server, "echo", piece("in", 4 * count), piece("out", 4 * count), [count])
        assert answer.status == 200, answer
        first = before // 4
        expected = floats(10_000)
        expected[first + shift : first + shift + count] = floats(count, first)
        assert (file.array() == expected).all()


def test_a_file_that_is_gone_before_it_is_used(server: Serving) -> None:
    """What is registered is a file, not a name; who has the name later has nothing to do with it."""
    with SharedFile(floats(5000)) as file:
        register(server, "in", file)
        os.unlink(file.path)
        Path(file.path).write_bytes(b"\xff" * 20_000)
        answer = infer(server, "echo", piece("in", 20_000), {"binary_data": True}, [5000])
        assert (binary_output(answer) == floats(5000)).all()


BEYOND = [16 * 1024, 16 * 1024 - 15, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


@pytest.mark.parametrize("offset", [*BEYOND, -1, -32])
def test_offsets_that_lead_out_of_a_region(server: Serving, offset: int) -> None:
    """Also those whose sum with the size begins anew at 64 bits, over both protocols, for inputs and outputs."""
    with SharedFile(floats(8192)) as file:
        # There is more in the file, before and behind.
        assert register(server, "part", file, offset=8192, byte_size=16 * 1024).status == 200
        for given, wanted in (("part", None), ("all", "part")):
            register(server, "all", file)
            where = [piece(name, 16, offset if name == "part" else 0) if name else None for name in (given, wanted)]
            answer = infer(server, "echo", where[0] or {}, where[1], [4])
            assert 400 <= answer.status < 600, answer
            assert "offset" in answer.error or "non-unsigned-integer" in answer.error, answer
            message = service_pb2.ModelInferRequest(model_name="echo")
            message.inputs.add(name="INPUT0", datatype="FP32", shape=[4])
            message.outputs.add(name="OUTPUT0")
            for tensor, name in (message.inputs[0], given), (message.outputs[0], wanted):
                if name:
                    tensor.parameters["shared_memory_region"].string_param = name
                    tensor.parameters["shared_memory_byte_size"].int64_param = 16
                    kind = "int64_param" if offset < 2**63 else "uint64_param"
                    setattr(tensor.parameters["shared_memory_offset"], kind, offset if name == "part" else 0)
            with connected(server) as rpc:
                assert rpc.refusal(message)[0] in ("INVALID_ARGUMENT", "INTERNAL")
        assert (file.array() == floats(8192)).all()


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(2**64 - 32, 64), (2**64 - 1, 1), (0, 2**64 - 1), (2**63, 2**63), (0, 16 * 1024 + 1), (16 * 1024, 1)],
)
def test_regions_that_end_behind_their_file(server: Serving, offset: int, nbytes: int) -> None:
    with SharedFile(16 * 1024) as file:
        answer = register(server, "in", file, offset=offset, byte_size=nbytes)
        assert (answer.status, answer.error) == (400, "failed to register shared memory region 'in': invalid args")


def test_nothing_of_the_server_can_be_registered(server: Serving) -> None:
    """Its memory has no name, and names of descriptors are none of files in /dev/shm."""
    assert infer(server, "echo", {}, None, [1], data=[1.0]).status == 200
    pids = [server.process.pid, *server.stub_pids()]
    arenas = [
        f"../../proc/{pid}/fd/{entry.name}"
        for pid in pids
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(entry).startswith("/memfd:")
    ]
    assert len(arenas) >= len(pids)
    assert not [line for pid in pids for line in open_files(pid)[-1].splitlines() if "/dev/shm/" in line]
    with SharedFile(64) as file:
        others = ("memfd:stubserve", "memfd:stubserve (deleted)", "..", ".", f"../shm/{file.name}", "../../etc/passwd")
        check_no_region(server, (*arenas, *others))


def check_no_region(server: Serving, keys: Sequence[str]) -> None:
    for key in keys:
        body = json.dumps({"key": f"/{key}", "byte_size": 64}).encode()
        answer = server.request("POST", "/v2/systemsharedmemory/region/odd/register", body)
        assert (answer.status, answer.error) == (500, f"Unable to open shared memory region: '/{key}'")


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root can make devices")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(_device, id="device"),
        pytest.param(os.mkdir, id="directory"),
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda path: path.symlink_to("/etc/hostname"), id="link"),
    ],
)
def test_what_is_no_memory_is_not_opened(server: Serving, make: Callable[[Path], None]) -> None:
    key = f"/region-of-a-test-{uuid.uuid4()}"
    path = Path("/dev/shm" + key)
    make(path)
    try:
        body = json.dumps({"key": key, "byte_size": 64}).encode()
        answer = server.request("POST", "/v2/systemsharedmemory/region/odd/register", body)
        assert (answer.status, answer.error) == (500, f"Unable to open shared memory region: '{key}'")
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@needs_setpriv
def test_a_file_of_somebody_else_is_not_opened(repository: Path) -> None:
    write_model(repository, "echo")
    key = f"/region-of-a-test-{uuid.uuid4()}"
    path = Path("/dev/shm" + key)
    path.touch(mode=0o600)
    path.chmod(0o000)
    server = Serving(repository, "--allow-client-shm")
    server.command = [*unprivileged(), *server.command]
    try:
        with server:
            body = json.dumps({"key": key, "byte_size": 64}).encode()
            answer = server.request("POST", "/v2/systemsharedmemory/region/odd/register", body)
            assert (answer.status, answer.error) == (500, f"Unable to open shared memory region: '{key}'")
    finally:
        path.unlink()
