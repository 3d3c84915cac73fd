"""Clients that are killed, servers that are restarted, are elsewhere or want no shared memory; too little memory."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from stubserve.client import Client
from tests.client.conftest import Asked
from tests.client.helpers import FLAG, SHAPE, image, in_pool, names_of, regions, running, write_image
from tests.real_server import Serving, eventually
from tools.ports import free_ports

# Asks until it has all the blocks that it will have, says so, and asks on until it is killed.
VICTIM = """
    import sys
    import numpy as np
    from stubserve.client import Client

    client = Client(sys.argv[1])
    with client.frame((4, 300, 400), np.uint8) as frame:
        frame[:] = 7
        answer = None
        for number in range(1 << 40):
            kept = answer
            answer = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
            assert (answer == 7).all()
            if number == 5:
                print("asks", flush=True)
"""


@pytest.mark.parametrize("also_restarted", [False, True])
def test_a_killed_client_leaves_nothing(asked: Asked, protocol: str, also_restarted: bool) -> None:
    with Client(asked.url(protocol)) as bystander:
        if also_restarted:
            # Its blocks are of the time before, and those that it has now are registered while the victim dies.
            bystander.infer("image", {"INPUT0": image(1)})
            bystander.triton.unregister_system_shared_memory()
        with running(VICTIM, asked.url(protocol)) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "asks\n"
            assert names_of(victim.pid) == []
            assert any(f"-{victim.pid}-" in name for name in regions(bystander.triton))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            assert names_of(victim.pid) == []
        # The server has its memory until the next client comes, and asks a few times.
        with Client(asked.url(protocol)) as other:

            def forgotten() -> bool:
                answer = other.infer("image", {"INPUT0": image(2)})["OUTPUT0"]
                np.testing.assert_array_equal(answer, image(2))
                return not any(f"-{victim.pid}-" in name for name in regions(other.triton))

            eventually(forgotten)
        assert (bystander.infer("image", {"INPUT0": image(3)})["OUTPUT0"] == image(3)).all()
        assert bystander.statistics().by_wire is None


@contextmanager
def on_port(root: Path, ports: list[int], *flags: str) -> Iterator[Serving]:
    with Serving(root, f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", *flags) as server:
        server.wait_until_ready()
        yield server


def test_a_restarted_server_gets_the_regions_anew(repository: Path, protocol: str) -> None:
    write_image(repository)
    ports = free_ports(2)
    url = f"{protocol}://127.0.0.1:{ports[protocol == 'grpc']}"
    with Client(url) as client:
        with on_port(repository, ports, FLAG) as server:
            with client.frame(SHAPE, np.uint8) as frame:
                frame[:] = image(1)
                before = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
            server.process.kill()
            server.process.wait()
        with pytest.raises((InferenceServerException, OSError)):
            client.infer("image", {"INPUT0": frame})
        with on_port(repository, ports, FLAG):
            # An answer comes over the wire when the server has come back between two questions of its request.
            (after,) = eventually(lambda: [answer for answer in _answer(client, frame) if in_pool(answer)])
            # What was there before is as it was, and the frame is an input still.
            np.testing.assert_array_equal(before, image(1))
            np.testing.assert_array_equal(after, image(1))
            del before, after
            again = client.infer("image", {"INPUT0": image(2)})["OUTPUT0"]
            np.testing.assert_array_equal(again, image(2))
            # What the old server knew is gone from the pool.
            assert client.statistics().blocks <= 4
            assert client.statistics().by_wire is None
        # A server that is started anew may have changed its mind.
        with on_port(repository, ports):
            (sent,) = eventually(lambda: _answer(client, image(3)))
            np.testing.assert_array_equal(sent, image(3))
            assert not in_pool(sent)
            assert "--allow-client-shm" in str(client.statistics().by_wire)


def _answer(client: Client, given: np.ndarray) -> list[np.ndarray]:
    """One answer; none while gRPC has not noticed that there is a server again."""
    try:
        return [client.infer("image", {"INPUT0": given})["OUTPUT0"]]
    except InferenceServerException as error:
        if error.status() != "StatusCode.UNAVAILABLE":
            raise
        return []


@pytest.fixture
def models(repository: Path) -> Path:
    write_image(repository)
    return repository


def _own_shm() -> list[str]:
    """The beginning of the command of a server that has a /dev/shm of its own, as in a container."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"']


def _may_unshare() -> bool:
    try:
        return subprocess.run([*_own_shm(), "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    ("flags", "prefix", "why"),
    [
        ((), [], "--allow-client-shm=true"),
        (
            (
                FLAG,
                "--http-restricted-api=shared-memory:X-Key=sesame",
                "--grpc-restricted-protocol=shared-memory:key=sesame",
            ),
            [],
            "restricted",
        ),
        pytest.param(
            (FLAG,),
            _own_shm(),
            "Unable to open shared memory region",
            marks=pytest.mark.skipif(not _may_unshare(), reason="may not make a mount namespace"),
        ),
    ],
    ids=["switched off", "refused", "elsewhere"],
)
def test_without_shared_memory_tensors_are_sent_and_the_log_says_so_once(
    models: Path,
    protocol: str,
    flags: tuple[str, ...],
    prefix: list[str],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "stubserve.client")
    server = Serving(models, *flags)
    server.command = [*prefix, *server.command]
    with server:
        server.wait_until_ready()
        port = server.port if protocol == "http" else server.grpc_port
        with Client(f"{protocol}://127.0.0.1:{port}") as client:
            with client.frame(SHAPE, np.uint8) as frame:
                frame[:] = image(1)
                for _ in range(3):
                    answer = client.infer("image", {"INPUT0": frame})["OUTPUT0"]
                    np.testing.assert_array_equal(answer, image(1))
            assert not in_pool(answer)
            assert not in_pool(frame)
            assert client.statistics().blocks == 0
            (record,) = caplog.records
            assert why in record.getMessage()
            assert why in str(client.statistics().by_wire)


# One MiB is as much as this process may write into a file.
SHORT = """
    import logging, resource, sys
    import numpy as np
    from stubserve.client import Client

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with Client(sys.argv[1]) as client:
        for number in range(3):
            given = np.full(1 << 19, number, np.float32)
            assert (client.infer("open", {"INPUT0": given})["OUTPUT0"] == given).all()
        small = np.full(1 << 17, 3, np.float32)
        assert (client.infer("open", {"INPUT0": small}, outputs={"OUTPUT0": (1 << 17,)})["OUTPUT0"] == small).all()
        print(client.statistics().blocks)
"""
# The child of a fork must not touch what is its parent's.
FORKS = """
    import os, sys
    import numpy as np
    from stubserve.client import Client

    given = np.ones(1 << 17, np.float32)
    shape = {"OUTPUT0": (1 << 17,)}
    with Client(sys.argv[1]) as client:
        answer = client.infer("open", {"INPUT0": given}, outputs=shape)["OUTPUT0"]
        child = os.fork()
        if not child:
            try:
                client.infer("open", {"INPUT0": given})
            except RuntimeError as error:
                print(error, flush=True)
            del answer
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert (client.infer("open", {"INPUT0": 2 * given}, outputs=shape)["OUTPUT0"] == 2).all()
        assert (answer == 1).all()
        print(client.statistics().blocks, flush=True)
"""


def test_where_there_is_no_room_tensors_are_sent(asked: Asked, protocol: str) -> None:
    with running(SHORT, asked.url(protocol)) as process:
        lines = process.communicate()[0].splitlines()
    # The log has it once; what is small enough is in the pool.
    assert [line.partition(": ")[0] for line in lines] == ["some tensors go over the wire", "2"]
    assert "File too large" in lines[0]


def test_a_fork_is_told_to_make_its_own(asked: Asked) -> None:
    with running(FORKS, asked.http) as process:
        told, counted = process.communicate()[0].splitlines()
    assert "make a client in each process" in told
    assert str(process.pid) in told
    assert counted == "3"


def test_a_file_that_a_kill_has_left_is_swept_by_the_next(protocol: str) -> None:
    """Between making a block and telling the server of it; this file is where a test can stop a client there."""
    program = """
        from stubserve.client.pool import BlockPool

        loan = BlockPool(1 << 20).lend(100_000)
        print(loan.block.name, flush=True)
        input()
    """
    with running(program) as victim:
        assert victim.stdout is not None
        name = victim.stdout.readline().strip()
        assert names_of(victim.pid) == [name]
        Client(f"{protocol}://127.0.0.1:1").close()
        assert names_of(victim.pid) == [name], "its owner lives"
        victim.kill()
        # Not waited for: a zombie is gone, too.
        eventually(lambda: _swept(protocol, victim.pid))


def _swept(protocol: str, pid: int) -> bool:
    Client(f"{protocol}://127.0.0.1:1").close()
    return names_of(pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000])
def test_thousands_of_frames_with_a_killed_client_and_a_restarted_server(
    repository: Path, protocol: str, count: int
) -> None:
    write_image(repository)
    ports = free_ports(2)
    url = f"{protocol}://127.0.0.1:{ports[protocol == 'grpc']}"
    made = [image(seed) for seed in range(7)]
    with Client(url) as client:

        def ask(numbers: range) -> None:
            for number in numbers:
                with client.frame(SHAPE, np.uint8) as frame:
                    frame[:] = made[number % 7]
                (answer,) = eventually(lambda frame=frame: _answer(client, frame))
                assert in_pool(answer)
                assert np.array_equal(answer, made[number % 7])

        with on_port(repository, ports, FLAG) as server:
            with running(VICTIM, url) as victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "asks\n"
                ask(range(count // 4))
                victim.kill()
                victim.wait()
                ask(range(count // 4, count // 2))
            before = _descriptors()
            server.process.kill()
            server.process.wait()
        with on_port(repository, ports, FLAG):
            ask(range(count // 2, count))
            assert client.statistics().blocks <= 4
            assert client.statistics().lent == 0
            assert _descriptors() <= before + 2
            client.close()
            with Client(url) as other:
                assert regions(other.triton) == []
    assert names_of(os.getpid()) == names_of(victim.pid) == []


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
