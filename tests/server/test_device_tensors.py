"""Tensors in memory of GPUs between models, with an emulated driver: where they lie, and which bytes are copied."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.emulated_gpu import DOWN, DOWN_REGISTERED, PEER, REGISTRATIONS, STAGED, UP, WITHIN
from tests.real_server import binary_output, eventually
from tests.server.ensembles import one, write_chain, write_ensemble
from tests.server.gpu_models import (
    CALL,
    DECOUPLED,
    FRAMEWORK,
    HOST,
    ON_GPU,
    PASS,
    STREAM,
    TURN,
    UPLOAD,
    ZERO,
    GpuServing,
    write_gpu_model,
)

NUMBERS = np.arange(100_000, dtype=np.float32)
NBYTES = NUMBERS.nbytes
TURNED = np.roll(NUMBERS, len(NUMBERS) // 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServing]:
    folder, repository = (tmp_path_factory.mktemp(name) for name in ("folder", "repository"))
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN)
    write_gpu_model(repository, "pass", PASS)
    write_chain(repository, "chain", "upload", "turn", "pass")
    steps = ON_GPU % 0 + "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    write_gpu_model(repository, "steps", TURN, extra=steps)
    write_chain(repository, "sequence", "upload", "steps", "pass")
    write_gpu_model(repository, "host", HOST, gpu=None, stays=False)
    write_chain(repository, "to_host", "upload", "host")
    write_gpu_model(repository, "look", "return given.as_numpy()")
    write_chain(repository, "looks", "upload", "look")
    write_gpu_model(repository, "zero", ZERO)
    write_ensemble(
        repository,
        "shared",
        one("upload", "INPUT0", "t"),
        one("zero", "t", "ZEROS"),
        one("pass", "t", "KEPT"),
        outputs="ZEROS KEPT",
    )
    write_gpu_model(
        repository, "stream", STREAM, extra="model_transaction_policy { decoupled: true }", source=DECOUPLED
    )
    up = CALL + "        given = upload(self.device, given.as_numpy())\n"
    for name, then in {
        "twice": "one = call(given, 'turn'); assert not one.is_cpu(); return call(one, 'turn')",
        "of_stream": "first, last = call(given, 'stream', decoupled=True); assert not last.is_cpu(); return first",
        "on_cpu": "one = call(given, 'turn', preferred_memory=CPU); assert one.is_cpu(); return one",
        "on_gpu": "one = call(given, 'host', preferred_memory=GPU); assert not one.is_cpu(); return one",
    }.items():
        write_gpu_model(repository, name, up + "        " + then)
    with GpuServing(repository, folder) as server:
        server.wait_until_ready()
        yield server


def test_an_ensemble_brings_nothing_to_the_host_but_its_answer(server: GpuServing) -> None:
    """Up once, as the model itself has it; each step's own copies, and one into the pool of its stub; down once."""
    for _ in range(3):
        with server.copying() as copied:
            assert (binary_output(server.infer_array("chain", NUMBERS)) == TURNED).all()
        assert copied == {UP: NBYTES, WITHIN: 3 * NBYTES, DOWN: NBYTES}


def test_the_steps_of_a_sequence_bring_nothing_to_the_host_but_their_answers(server: GpuServing) -> None:
    for step in range(3):
        sequence = {"sequence_id": 7, "sequence_start": step == 0, "sequence_end": step == 2}
        sequence["binary_data_output"] = True
        with server.copying() as copied:
            answer = server.infer_array("sequence", NUMBERS + step, parameters=sequence)
            assert (binary_output(answer) == TURNED + step).all()
        assert copied == {UP: NBYTES, WITHIN: 3 * NBYTES, DOWN: NBYTES}
    late = server.infer_array("sequence", NUMBERS, parameters={"sequence_id": 7, "binary_data_output": True})
    assert late.status == 400


def test_requests_of_models_hand_tensors_on(server: GpuServing) -> None:
    """The caller's array goes into its pool, and each answer into that of its stub; each model has a copy of its own.

    So has the second call's, of memory that its caller still has.
    """
    with server.copying() as copied:
        assert (binary_output(server.infer_array("twice", NUMBERS)) == NUMBERS).all()
    assert copied == {UP: NBYTES, WITHIN: 6 * NBYTES, DOWN: NBYTES}


def test_a_stream_hands_tensors_on(server: GpuServing) -> None:
    with server.copying() as copied:
        assert (binary_output(server.infer_array("of_stream", NUMBERS)) == TURNED).all()
    assert copied[UP] == copied[DOWN] == NBYTES


def test_a_model_may_prefer_other_memory_for_its_answers(server: GpuServing) -> None:
    """On the CPU the called model copies down; on the GPU the caller copies up what came on the CPU."""
    with server.copying() as copied:
        assert (binary_output(server.infer_array("on_cpu", NUMBERS)) == TURNED).all()
    assert copied == {UP: NBYTES, WITHIN: 2 * NBYTES, DOWN: NBYTES}
    with server.copying() as copied:
        assert (binary_output(server.infer_array("on_gpu", NUMBERS)) == NUMBERS + 1).all()
    assert copied == {UP: 2 * NBYTES, WITHIN: NBYTES, DOWN: 2 * NBYTES}


def test_by_default_inputs_are_on_the_cpu(server: GpuServing) -> None:
    """In an ensemble its maker copies a tensor down, once; elsewhere its reader does."""
    with server.copying() as copied:
        assert (binary_output(server.infer_array("to_host", NUMBERS)) == NUMBERS + 1).all()
    assert copied == {UP: NBYTES, DOWN: NBYTES}


def test_what_others_read_is_not_written_to(server: GpuServing) -> None:
    for _ in range(3):
        answer = binary_output(server.infer_array("shared", NUMBERS, outputs=[binary("KEPT")]))
        assert (answer == NUMBERS).all()
        answer = binary_output(server.infer_array("shared", NUMBERS, outputs=[binary("ZEROS")]))
        assert not answer.any()


def binary(output: str) -> dict[str, object]:
    return {"name": output, "parameters": {"binary_data": True}}


def test_a_small_tensor_stays_on_the_gpu_too(server: GpuServing) -> None:
    with server.copying() as copied:
        assert binary_output(server.infer_array("chain", NUMBERS[:4])).tolist() == [2, 3, 0, 1]
    assert copied == {UP: 16, WITHIN: 48, DOWN: 16}


def test_what_is_refused(server: GpuServing) -> None:
    answer = server.infer_array("looks", NUMBERS)
    assert (answer.status, "Tensor is stored in GPU and cannot be converted to NumPy." in answer.error) == (500, True)


def test_another_gpu(repository: Path, tmp_path: Path) -> None:
    """A tensor is brought to the GPU of its reader: directly between peers, else through the host, as the log says."""
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN, gpu=1)
    write_chain(repository, "chain", "upload", "turn")
    for peers, direction in (("1", PEER), ("0", STAGED)):
        folder = tmp_path / peers
        folder.mkdir()
        with GpuServing(repository, folder, EMULATED_PEERS=peers) as server:
            server.wait_until_ready()
            for _ in range(2):
                with server.copying() as copied:
                    assert (binary_output(server.infer_array("chain", NUMBERS)) == TURNED).all()
                assert copied == {UP: NBYTES, WITHIN: 2 * NBYTES, direction: NBYTES, DOWN: NBYTES}
            if peers == "0":
                server.wait_for_all("GPU 0 and GPU 1 are no peers", 1)


def test_a_gpu_without_room_refuses_with_the_reason(repository: Path, tmp_path: Path) -> None:
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "pass", PASS)
    write_chain(repository, "chain", "upload", "pass")
    numbers = np.zeros(10 << 20, np.float32)
    with GpuServing(repository, tmp_path, EMULATED_GPU_MEMORY=str(64 << 20)) as server:
        server.wait_until_ready()
        answer = server.infer_array("chain", numbers)
        assert answer.status == 503
        assert "no room for 41943040 bytes: GPU 0 has 25165824 of its 67108864 bytes left. cuMemCreate" in answer.error
        # What fits is answered.
        assert (binary_output(server.infer_array("chain", NUMBERS)) == NUMBERS).all()


def test_a_pool_has_no_more_than_the_flag_allows(repository: Path, tmp_path: Path) -> None:
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "pass", PASS)
    write_chain(repository, "chain", "upload", "pass")
    flags = ("--cuda-memory-pool-byte-size=1:4096", f"--cuda-memory-pool-byte-size=0:{32 << 20}")
    with GpuServing(repository, tmp_path, *flags) as server:
        server.wait_until_ready()
        answer = server.infer_array("chain", np.zeros(10 << 20, np.float32))
        assert answer.status == 503
        assert "no room for 41943040 bytes in the pool of GPU 0, which has 33554432 bytes" in answer.error
        assert "Raise --cuda-memory-pool-byte-size=0:BYTES" in answer.error
        assert (binary_output(server.infer_array("chain", NUMBERS)) == NUMBERS).all()


def test_peers_that_are_not_to_access_each_other(repository: Path, tmp_path: Path) -> None:
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN, gpu=1)
    write_chain(repository, "chain", "upload", "turn")
    with GpuServing(repository, tmp_path, "--enable-peer-access=false", EMULATED_PEERS="1") as server:
        server.wait_until_ready()
        assert (binary_output(server.infer_array("chain", NUMBERS)) == TURNED).all()
        server.wait_for("GPU 0 and GPU 1 are no peers")


@pytest.mark.parametrize("kills", [4, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_kills_at_any_moment_leave_nothing(repository: Path, tmp_path: Path, kills: int) -> None:
    """No wrong answer, and no chunk and no descriptor of a stub that is gone."""
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN, extra="instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0, 1 ] } ]")
    write_gpu_model(repository, "pass", PASS)
    write_chain(repository, "chain", "upload", "turn", "turn", "pass")
    chance = random.Random(25)
    wrong: list[object] = []
    with GpuServing(repository, tmp_path, "--restart-wait-secs=60", "--stub-restart-limit=100000") as server:
        server.wait_until_ready()
        over = threading.Event()

        def ask(number: int) -> None:
            numbers = NUMBERS + number
            while not over.is_set():
                answer = server.infer_array("chain", numbers)
                if answer.status == 200 and (binary_output(answer) != numbers).any():
                    wrong.append(answer)

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in asking:
            thread.start()
        for _ in range(kills):
            # Of those that die again and again before they have started, each start waits longer.
            pids = eventually(lambda: len(found := server.stub_pids()) > 4 and found)
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGKILL)
            time.sleep(chance.random() / 5)
        over.set()
        for thread in asking:
            thread.join()
        assert not wrong
        eventually(lambda: len(server.stub_pids()) == 6)
        assert (binary_output(server.infer_array("chain", NUMBERS)) == NUMBERS).all()
        # At most one chunk for each stub and each GPU that it has, and the arrays that stubs keep till the next request
        eventually(lambda: len(chunks_of([server.process.pid])) <= 6)
        eventually(lambda: len(chunks_of([server.process.pid, *server.stub_pids()])) <= 12)


def chunks_of(pids: list[int]) -> set[str]:
    """The memory of emulated GPUs that these processes have open or mapped, by number."""
    found = set()
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "emulated-gpu" in line:
                found.add(line.split()[4])
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "emulated-gpu" in os.readlink(descriptor):
                    found.add(str(os.stat(descriptor).st_ino))
    return found


def test_what_comes_down_is_pinned_once(repository: Path, tmp_path: Path) -> None:
    """And unpinned before its memory goes back to the system, which an idle stub is asked for."""
    write_gpu_model(repository, "upload", UPLOAD)
    with GpuServing(repository, tmp_path, EMULATED_GPUS="1") as server:
        server.wait_until_ready()
        for number in range(20):
            assert (binary_output(server.infer_array("upload", NUMBERS + number)) == NUMBERS + number).all()
        assert server.count(DOWN_REGISTERED) == 20 * NBYTES
        assert server.count(REGISTRATIONS) <= 3
        # Larger than what a stub keeps warm, so each of these goes back to the system.
        before = server.count(REGISTRATIONS)
        for number in range(3):
            large = np.full(20 << 20, number, np.float32)
            assert (binary_output(server.infer_array("upload", large)) == large).all()
        assert server.count(REGISTRATIONS) == before + 3


@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        (["--pinned-memory-pool-byte-size=0"], ""),
        (["--pinned-memory-pool-byte-size=100000"], ""),
        ([], "optimization { output_pinned_memory { enable: false } }"),
    ],
)
def test_nothing_is_pinned_where_that_is_not_wanted(
    repository: Path, tmp_path: Path, flags: list[str], extra: str
) -> None:
    write_gpu_model(repository, "upload", UPLOAD, extra=extra + "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]")
    with GpuServing(repository, tmp_path, *flags) as server:
        server.wait_until_ready()
        assert (binary_output(server.infer_array("upload", NUMBERS)) == NUMBERS).all()
        assert server.count(REGISTRATIONS) == 0
        assert server.count(DOWN) == NBYTES


def test_a_gpu_that_is_too_full_takes_no_more_models(repository: Path, tmp_path: Path) -> None:
    """Looked at after the load, as upstream; and each GPU has a limit of its own."""
    fills = "import numpy as np\n" + FRAMEWORK.replace(
        'self.device = int(args["model_instance_device_id"])',
        'self.device = int(args["model_instance_device_id"])\n        self.filled = Array(self.device, (160 << 18,))',
    )
    for name, gpu in (("first", 0), ("second", 1)):
        write_gpu_model(repository, name, UPLOAD, gpu=gpu, source=fills)
    flags = ("--model-load-gpu-limit=0:0.5", "--model-load-gpu-limit=1:0.7", "--exit-on-error=false")
    with GpuServing(repository, tmp_path, *flags, EMULATED_GPU_MEMORY=str(256 << 20)) as server:
        eventually(lambda: server.get("/v2/models/second/ready").status == 200)
        (refused,) = [one for one in server.request("POST", "/v2/repository/index").json() if one["name"] == "first"]
        assert refused["state"] == "UNAVAILABLE"
        assert (
            "can not create model 'first_0_0': memory limit set for GPU 0 has exceeded, model loading is rejected"
            in (refused["reason"])
        )
        assert "and --model-load-gpu-limit=0:0.5 allows 134217728" in refused["reason"]
