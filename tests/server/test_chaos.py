"""A crowd of clients while stubs are killed under them: nothing hangs, failures say why, successes are right.

STUBSERVE_CHAOS_SECONDS makes it longer than the few seconds that it takes in the test run.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from tests.real_server import IDENTITY, Answer, Serving, binary_output, binary_request, io_config, write_model

SECONDS = float(os.environ.get("STUBSERVE_CHAOS_SECONDS", "6"))
CONNECTIONS = 32
KILL_EVERY_S = min(2.0, SECONDS / 6)
ANSWER_WITHIN_S = 20.0


class Client(threading.Thread):
    """Asks without pause until told to stop, and checks every answer."""

    def __init__(self, server: Serving, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.random = random.Random(seed)
        self.stop = stop
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        connection = self.server.connect()
        connection.timeout = ANSWER_WITHIN_S
        number = 0
        while not self.stop.is_set():
            number += 1
            size = self.random.choice([1, 16, 500, 20_000])
            array = np.full((1, size), self.random.random(), np.float32)
            path, body, headers = binary_request("echo", array)
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                answer = Answer(response.status, dict(response.getheaders()), response.read())
            except OSError as error:
                self.wrong.append(f"no answer: {error!r}")
                return
            if answer.status == 200:
                self.outcomes["answered"] += 1
                if not np.array_equal(binary_output(answer), array):
                    self.wrong.append("a wrong answer")
            elif "SIGKILL" in answer.error and answer.status in (500, 503):
                self.outcomes["failed"] += 1
                if answer.status == 503:
                    self.stop.wait(0.02)  # as a client that backs off would
            else:
                self.wrong.append(f"a failure without the cause: {answer}")
        connection.close()


def test_clients_survive_killed_stubs(tmp_path: Path) -> None:
    config = io_config("FP32", "-1", 16, "dynamic_batching { } instance_group [ { count: 2 } ]")
    write_model(tmp_path, "echo", IDENTITY, config)
    with Serving(tmp_path, "--stub-restart-limit=1000000", "--shm-limit=1G") as server:
        parent = psutil.Process(server.process.pid)
        stop = threading.Event()
        clients = [Client(server, seed, stop) for seed in range(CONNECTIONS)]
        for client in clients:
            client.start()
        chance = random.Random(0)
        kills = 0
        rss = []
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            stop.wait(KILL_EVERY_S)
            pids = server.stub_pids()
            if pids:
                os.kill(chance.choice(pids), signal.SIGKILL)
                kills += 1
            rss.append(parent.memory_info().rss)
        stop.set()
        for client in clients:
            client.join(ANSWER_WITHIN_S + 5)
            assert not client.is_alive(), "a request hangs"
        assert [wrong for client in clients for wrong in client.wrong] == []
        outcomes = sum((client.outcomes for client in clients), Counter())
        print(f"{kills} kills, {dict(outcomes)}, parent {rss[0] >> 20} -> {rss[-1] >> 20} MiB")
        assert kills >= 3
        assert outcomes["answered"] > 100
        assert outcomes["failed"] > 0
        # The first sample is taken under full load; what comes after it may only be noise.
        assert rss[-1] < rss[len(rss) // 3] + (16 << 20)
        # And when the last killed stub is back, everything is as before.
        server.wait_until_ready()
        array = np.ones((1, 8), np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)
