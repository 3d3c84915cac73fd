"""What a service manager hears of a server."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from pathlib import Path

import pytest

from stubserve.server.service_manager import ServiceManager
from tests.real_server import PATIENCE_S, Serving, write_model


class Manager:
    """Listens at an address, all the time, so that nothing has to wait in the socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._news: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def heard(self, without: str = "") -> str:
        """The next news that is not `without`."""
        while (news := self._news.get(timeout=PATIENCE_S)) == without:
            pass
        return news

    def _read(self) -> None:
        while news := self._socket.recv(100):
            self._news.put(news.decode())


def test_a_server_says_when_it_is_ready_and_when_it_stops(repository: Path, tmp_path: Path) -> None:
    model = 'import os\nassert "NOTIFY_SOCKET" not in os.environ\nassert "WATCHDOG_USEC" not in os.environ\n'
    write_model(repository, "quiet", model + "class TritonPythonModel:\n    def execute(self, requests): ...\n")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with Manager(environment["NOTIFY_SOCKET"]) as manager:
        with Serving(repository, environment=environment) as server:
            assert manager.heard() == "WATCHDOG=1"
            assert manager.heard(without="WATCHDOG=1") == "READY=1"
            assert server.get("/v2/health/ready").status == 200
            assert manager.heard() == "WATCHDOG=1"
        assert manager.heard(without="WATCHDOG=1") == "STOPPING=1"


def test_a_server_that_fails_is_never_ready(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "broken", "1 / 0")
    with Manager(str(tmp_path / "notify")) as manager:
        server = Serving(repository, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        server.start()
        assert server.process.wait(PATIENCE_S) == 1
        server.stop()
        assert manager.heard() == "STOPPING=1"


def test_abstract_addresses() -> None:
    name = f"stubserve-test-{os.getpid()}"
    with Manager("\0" + name) as manager:
        ServiceManager({"NOTIFY_SOCKET": "@" + name}).ready()
        assert manager.heard() == "READY=1"


def test_nobody_needs_to_listen(tmp_path: Path) -> None:
    ServiceManager({}).ready()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


@pytest.mark.parametrize(("whose", "watched"), [("", True), ("{ours}", True), ("1", False)])
def test_the_watchdog_is_for_the_process_that_it_names(whose: str, watched: bool, tmp_path: Path) -> None:
    whose = whose.format(ours=os.getpid())

    async def news(manager: Manager) -> str:
        one = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": whose})
        one.watch()
        one.ready()
        one.close()
        return manager.heard()

    with Manager(str(tmp_path / "n")) as manager:
        assert asyncio.run(news(manager)) == ("WATCHDOG=1" if watched else "READY=1")
