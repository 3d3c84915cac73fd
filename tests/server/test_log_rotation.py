"""The files of the log and of traces when a program renames them, as those do that rotate logs; and SIGHUP."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import Serving, eventually, write_model

ROOT = Path(__file__).parents[2]
ROTATION = ROOT / "src" / "stubserve" / "deploy" / "logrotate" / "stubserve.logrotate"


@pytest.fixture(autouse=True)
def heeds_sighup() -> Iterator[None]:
    """Under nohup the signal is ignored, and then so it is by servers."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class LoggingToFile(Serving):
    """A server whose log goes to a file."""

    def __init__(self, repository: Path, log: Path, *flags: str) -> None:
        super().__init__(repository, f"--log-file={log}", *flags)
        self.log = log

    def __enter__(self) -> Serving:
        self.start()
        found = eventually(
            lambda: self.log.exists() and re.search(r"Started HTTPService at \S+:(\d+)", self.log.read_text())
        )
        self.port = int(found[1])
        return self

    def hang_up(self) -> None:
        """Sends SIGHUP and waits until the log goes on in a file of the same name."""
        before = told(self.log)
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: told(self.log) > before)


def told(log: Path) -> int:
    return log.read_text().count("has been opened again") if log.exists() else 0


def test_no_line_is_lost_and_nobody_ends(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    log = tmp_path / "log"
    server = LoggingToFile(tmp_path / "models", log, "--access-log")
    asked: list[int] = []
    enough = threading.Event()

    def ask(first: int) -> None:
        number = first
        while not enough.is_set():
            assert server.get(f"/v2/health/live?number={number}").status == 200
            asked.append(number)
            number += 2

    with server:
        stubs = server.stub_pids()
        askers = [threading.Thread(target=ask, args=(first,)) for first in (0, 1)]
        for asker in askers:
            asker.start()
        for index in range(5):
            seen = len(asked)
            log.rename(tmp_path / f"log.{index}")
            server.hang_up()
            eventually(lambda seen=seen: len(asked) > seen + 4)  # type: ignore[misc]
        enough.set()
        for asker in askers:
            asker.join()
        assert "number=" in log.read_text()
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        assert server.stub_pids() == stubs
        assert server.stop() == 0
    text = "".join(file.read_text() for file in tmp_path.glob("log*"))
    assert sorted(map(int, re.findall(r"number=(\d+)", text))) == sorted(asked)


def test_a_stub_does_not_heed_it(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server:
        (stub,) = server.stub_pids()
        subprocess.run(["kill", "-HUP", str(stub)], check=True)
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("SIGHUP is ignored: there is no --log-file to open again")
        assert server.stub_pids() == [stub]
        assert server.stop() == 0


def test_under_nohup_it_stays_ignored(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    server = Serving(tmp_path)
    server.command = ["nohup", *server.command]
    with server:
        for pid in (server.process.pid, *server.stub_pids()):
            (ignored,) = re.findall(r"^SigIgn:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
            assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)


def test_where_the_new_file_cannot_be_opened_the_old_one_goes_on(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    log = tmp_path / "log"
    old = tmp_path / "log.1"
    with LoggingToFile(tmp_path / "models", log, "--access-log") as server:
        log.rename(old)
        log.mkdir()
        server.process.send_signal(signal.SIGHUP)
        text = "cannot be opened again, so the log goes on in the old file: Is a directory"
        eventually(lambda: text in old.read_text())
        server.get("/v2/health/live?after")
        eventually(lambda: "/v2/health/live?after" in old.read_text())


@pytest.mark.parametrize("emptied", [False, True])
def test_traces_go_on_in_a_new_file(tmp_path: Path, emptied: bool) -> None:
    write_model(tmp_path / "models", "echo")
    file = tmp_path / "traces"

    def written() -> int:
        text = file.read_text() if file.exists() else ""
        return sum("model_name" in one for one in json.loads(text)) if text.endswith("]") else 0

    level, rate = "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"
    with Serving(tmp_path / "models", level, rate, f"--trace-config=triton,file={file}") as server:
        for _ in range(2):
            assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        eventually(lambda: written() == 2)
        if emptied:
            file.write_text("")
        else:
            file.rename(tmp_path / "traces.1")
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        eventually(lambda: written() == 1)
        assert "traces are lost" not in server.output


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="logrotate is not installed")
def test_the_rotation_that_is_deployed(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "stubserve.log"
    with LoggingToFile(tmp_path / "models", log, "--access-log") as server:
        text = ROTATION.read_text()
        assert "/var/log/stubserve/" in text
        assert "systemctl reload stubserve" in text
        text = text.replace("/var/log/stubserve/", f"{folder}/")
        rotation = tmp_path / "rotation"
        rotation.write_text(text.replace("systemctl reload stubserve", f"kill -HUP {server.process.pid}"))
        subprocess.run(["logrotate", "--force", f"--state={tmp_path / 'state'}", rotation], check=True)
        eventually(lambda: told(log) == 1)
        assert "Started HTTPService" in (folder / "stubserve.log.1").read_text()


def test_the_page_shows_the_rotation_that_is_deployed() -> None:
    _, _, rotation = ROTATION.read_text().partition("\n")
    assert f"```text\n{rotation}```" in (ROOT / "docs/deployment/systemd.md").read_text()
