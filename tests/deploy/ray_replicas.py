"""Runs the application for Ray Serve with two replicas, kills one, and prints what came of it. ray is needed.

usage: python ray_replicas.py REPOSITORY PORT TEMPORARY_FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import ray
from ray import serve

from stubserve import ray_serve

TIMEOUT_S = 120


def main(repository: str, port: int, folder: str) -> dict[str, Any]:
    def ask() -> tuple[int, int]:
        """Pids of the stub that answers and of its replica."""
        body = json.dumps({"inputs": []}).encode()
        answer = json.load(urlopen(Request(f"http://127.0.0.1:{port}/v2/models/who/infer", body), timeout=30))
        stub, replica = answer["outputs"][0]["data"]
        return stub, replica

    def ask_until(known: set[tuple[int, int]], count: int) -> tuple[set[tuple[int, int]], int, int]:
        """Asks until so many others than the `known` have answered: (they, requests, failures)."""
        found: set[tuple[int, int]] = set()
        requests = failures = 0
        deadline = time.monotonic() + TIMEOUT_S
        while len(found - known) < count:
            assert time.monotonic() < deadline, f"{found} after {requests} requests, {failures} failed"
            requests += 1
            try:
                found.add(ask())
            except URLError:
                failures += 1
            time.sleep(0.02)
        return found, requests, failures

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=folder, object_store_memory=100 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(ray_serve.app({"repository": repository, "replicas": "2", "flags": "--shm-limit=256M"}))
        first, _, _ = ask_until(set(), 2)
        stub, replica = min(first)
        os.kill(replica, signal.SIGKILL)
        second, requests, failures = ask_until(first, 1)
        return {
            "replicas": len({one for _, one in first}),
            "others answered meanwhile": bool(second & first - {(stub, replica)}),
            "requests": requests,
            "failures": failures,
            "stub lives": os.path.exists(f"/proc/{stub}"),
        }
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
