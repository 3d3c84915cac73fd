"""The status page on the metrics port: its data, what may reach it, and how it looks in a real browser."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import WORK_S, Serving, binary_output, eventually, io_config, write_model
from tools.browser import PROGRAM, Browser

EVIL = "<img src=x onerror=\"document.title='owned'\">"
FAILS = f"""
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError({EVIL!r})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo", config=io_config(max_batch_size=8))
    write_model(repository, "fails", FAILS)
    write_model(repository, "mortal")
    write_model(repository, "broken", f"raise ImportError({EVIL!r})")
    with Serving(repository, "--exit-on-error=false", "--strict-readiness=false") as running:
        running.wait_for("failed to load 'broken'")
        running.wait_for("successfully loaded 'fails'")
        running.wait_for("successfully loaded 'echo'")
        binary_output(running.infer_array("echo", np.zeros((2, 4), np.float32)))
        assert running.infer_array("fails", np.zeros(4, np.float32)).status == 500
        yield running


def status(server: Serving) -> Any:
    answer = server.metrics("/status.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_the_data(server: Serving) -> None:
    shown = status(server)
    models = {model["name"]: model for model in shown["models"]}
    echo = models["echo"]
    assert (echo["state"], echo["ready"], echo["answered"], echo["failed"]) == ("READY", True, 1, 0)
    assert echo["batches"] == {"2": 1}
    (instance,) = echo["instances"]
    assert (instance["name"], instance["state"]) == ("echo_0", "ready")
    assert instance["pid"] in server.stub_pids()
    assert models["fails"]["failed"] == 1
    assert models["broken"]["state"] == "UNAVAILABLE"
    assert "ImportError" in models["broken"]["reason"]
    assert shown["memory"]["limit"] > sum(shown["memory"]["owners"].values()) > 0
    error = next(error for error in shown["errors"] if "ValueError" in error["text"])
    assert "Traceback" in error["text"] or "model.py" in error["text"]
    assert shown["history"][-1][1:3] == [1, 1]


def test_a_stub_that_has_died_is_seen(server: Serving) -> None:
    def restarts() -> int:
        models = {model["name"]: model for model in status(server)["models"]}
        count: int = models["mortal"]["instances"][0]["restarts"]
        return count

    before = restarts()
    assert before == 0
    models = {model["name"]: model for model in status(server)["models"]}
    os.kill(models["mortal"]["instances"][0]["pid"], signal.SIGKILL)
    eventually(lambda: restarts() == before + 1)
    eventually(lambda: server.get("/v2/models/echo/ready").status == 200)


def test_a_model_that_sleeps_is_asleep(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")

    def seen(server: Serving) -> list[Any]:
        (model,) = status(server)["models"]
        return [model["state"], model["ready"], model["asleep"]]

    with Serving(tmp_path / "models", "--sleep-after-secs=0.1") as server:
        eventually(lambda: seen(server) == ["READY", True, True])
        if PROGRAM is not None:
            page = in_a_browser(server, tmp_path / "profile")
            assert re.search(r'<td class="state"[^>]*><span class="pill *">asleep</span>', page)
            assert '<span id="state" class="pill good" role="status">ready</span>' in page


def in_a_browser(server: Serving, profile: Path) -> str:
    """The page as the browser has it after some seconds of its own time."""
    assert PROGRAM is not None
    command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
    command += ["--virtual-time-budget=5000", f"http://127.0.0.1:{server.metrics_port}/"]
    return subprocess.run(command, capture_output=True, text=True, timeout=WORK_S).stdout


def test_the_page_needs_nothing_from_elsewhere(server: Serving) -> None:
    answer = server.metrics("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.body.decode()
    assert not re.search(r"(?:src|href)=\"(?!data:,|/metrics)", page)
    # What comes from models is set as text.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", page)


def test_a_flag_turns_it_off(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--status-page=false") as running:
        for path in ("/", "/status.json"):
            assert running.metrics(path).body == b""
        assert b"nv_inference_count" in running.metrics().body


def test_the_page_asks_for_a_token(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "echo")
    (tmp_path / "tokens").write_text("0123456789abcdef metrics\nfedcba9876543210 inference\n")
    with Serving(repository, f"--auth-token-file={tmp_path / 'tokens'}") as running:
        assert running.metrics("/").status == 200
        assert running.metrics("/status.json").status == running.metrics().status == 401
        if PROGRAM is None:
            return
        with Browser(tmp_path / "profile") as browser:
            browser.open(f"http://127.0.0.1:{running.metrics_port}/")
            for token, state in (
                ("", "a token is wanted"),
                ("fedcba9876543210", "the token is not good for this"),
                ("0123456789abcdef", "ready"),
            ):
                if token:
                    browser.run(f"at('token').value = '{token}'; at('access').requestSubmit()")
                browser.until(f"document.getElementById('state')?.textContent === '{state}'")


@pytest.mark.skipif(PROGRAM is None, reason="needs chromium")
def test_in_a_browser(server: Serving, tmp_path: Path) -> None:
    page = in_a_browser(server, tmp_path)
    assert "<title>triton: stubserve</title>" in page
    assert "1 of 3 models not ready" in page
    for model in ("echo", "fails", "broken"):
        assert f'<summary class="name">{model} ' in page
    # The text is there, as text.
    assert html.escape(EVIL, quote=False) in page
    assert "<img" not in page
    assert re.search(r"ValueError", page)
