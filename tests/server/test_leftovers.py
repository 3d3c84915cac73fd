"""What models have started does not outlive the server, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.real_server import PATIENCE_S, Serving, eventually, write_model

# Starts a child, one in a session of its own, one that nobody waits for any more, and one that forgets everything.
PROLIFIC = """
    import os
    import subprocess
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            sleep = ["sleep", "1000"]
            self.children = [
                subprocess.Popen(sleep),
                subprocess.Popen(sleep, start_new_session=True),
                subprocess.Popen(sleep, env={}),
            ]
            pids = [child.pid for child in self.children]
            reading, writing = os.pipe()
            if not os.fork():
                os.setsid()
                daemon = subprocess.Popen(sleep)
                os.write(writing, b"%d" % daemon.pid)
                os._exit(0)
            os.wait()
            print("started", *pids, int(os.read(reading, 20)), flush=True)

        def execute(self, requests):
            # A process that is dead before its parent's parent hears of it
            if not os.fork():
                os.setsid()
                if os.fork():
                    os._exit(0)
                print("orphan", os.getpid(), flush=True)
                os._exit(0)
            os.wait()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1, np.float32))]) for _ in requests]
"""


def started(server: Serving) -> list[psutil.Process]:
    pids = server.wait_for(r"started ((?:\d+ ?){4})")[1].split()
    return [psutil.Process(int(pid)) for pid in pids]


def check_gone(processes: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, 30)
    assert not alive


def janitors_of(server: Serving) -> list[psutil.Process]:
    """One, or none while it is being started."""
    return [
        child
        for child in psutil.Process(server.process.pid).children()
        if any("janitor_program" in word for word in child.cmdline())
    ]


def kill(server: Serving) -> None:
    server.process.kill()
    server.process.wait()


def kill_janitor_and_server(server: Serving) -> None:
    (first,) = janitors_of(server)
    first.kill()
    eventually(lambda: not first.is_running())
    eventually(lambda: janitors_of(server))
    # In the turn of the event loop that has started it, it is told of the stubs; an answer comes after that.
    assert server.get("/v2/health/live").status == 200
    kill(server)


@pytest.mark.parametrize("end", [kill, kill_janitor_and_server, Serving.stop])
def test_nothing_outlives_the_server(tmp_path: Path, end: Callable[[Serving], object]) -> None:
    write_model(tmp_path, "prolific", PROLIFIC)
    with Serving(tmp_path) as server:
        processes = [*started(server), *map(psutil.Process, server.stub_pids())]
        assert len(processes) == 5
        end(server)
        check_gone(processes)


def test_other_servers_processes_stay(tmp_path: Path) -> None:
    write_model(tmp_path, "prolific", PROLIFIC)
    with Serving(tmp_path) as other:
        theirs = started(other)
        with Serving(tmp_path) as server:
            ours = started(server)
            kill(server)
            check_gone(ours)
        assert all(process.is_running() for process in theirs)


def test_as_the_first_process_of_a_container_it_leaves_no_dead_ones(tmp_path: Path) -> None:
    contained = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*contained, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespace of processes can be made here")
    write_model(tmp_path, "prolific", PROLIFIC)
    server = Serving(tmp_path)
    server.command = [*contained, *server.command]
    with server:
        (inner,) = psutil.Process(server.process.pid).children()

        def dead() -> set[int]:
            return {child.pid for child in inner.children() if child.status() == psutil.STATUS_ZOMBIE}

        assert server.infer_array("prolific", np.zeros(1, np.float32)).status == 200
        server.wait_for("orphan")
        orphans = eventually(dead)
        eventually(lambda: not orphans & dead())
        os.kill(inner.pid, signal.SIGTERM)
        server.process.wait(PATIENCE_S)
