"""Pages of other origins: what they are told, and the page of the docs in a real browser."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stubserve.commands.init import write_model as write_new_model
from tests.real_server import PATIENCE_S, WORK_S, Serving, binary_request, write_model
from tools.browser import PROGRAM

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "browser.md"
HERE = "http://localhost:3000"
EXPOSED = "Inference-Header-Content-Length, Content-Encoding"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo")
    with Serving(repository, f"--http-cors-origin={HERE}", "--http-cors-origin=https://example.org") as running:
        yield running


def infer(server: Serving, model: str, origin: str | None) -> dict[str, str]:
    """The headers of an answer."""
    path, body, headers = binary_request(model, np.zeros(2, np.float32))
    return server.request("POST", path, body, {**headers, **({"Origin": origin} if origin else {})}).headers


@pytest.mark.parametrize("model", ["echo", "nobody"])
def test_an_answer_or_an_error_names_an_origin_that_is_allowed(server: Serving, model: str) -> None:
    for _ in range(3):  # the last ones would be recognised as the same request again
        headers = infer(server, model, HERE)
        assert headers["access-control-allow-origin"] == HERE
        assert headers["access-control-expose-headers"] == EXPOSED
        assert headers["vary"] == "Origin"
    headers = infer(server, model, "https://elsewhere.org")
    assert "access-control-allow-origin" not in headers
    assert headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in infer(server, model, None)


def test_other_routes_and_preflights_follow_the_same_rules(server: Serving) -> None:
    answer = server.request("GET", "/v2/models/echo", headers={"Origin": HERE})
    assert answer.headers["access-control-allow-origin"] == HERE
    asked = {
        "Origin": HERE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,inference-header-content-length",
    }
    answer = server.request("OPTIONS", "/v2/models/echo/infer", headers=asked)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == HERE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "inference-header-content-length" in answer.headers["access-control-allow-headers"].lower()
    answer = server.request("OPTIONS", "/v2/models/echo/infer", headers={**asked, "Origin": "https://elsewhere.org"})
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers


def test_without_the_flag_nothing_is_said(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as plain:
        headers = infer(plain, "echo", HERE)
        assert not [name for name in headers if name.startswith("access-control") or name == "vary"]
        assert plain.request("OPTIONS", "/v2/models/echo/infer").status == 405


def test_an_origin_has_nothing_behind_it(repository: Path) -> None:
    refused = Serving(repository, "--http-cors-origin=https://example.org/")
    refused.start()
    assert refused.process.wait(PATIENCE_S) == 1
    refused.stop()
    refused.wait_for("--http-cors-origin: an origin is as https://example.org or .*, or \\* for all")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome on this machine")
@pytest.mark.parametrize(("flags", "shown"), [(("--http-cors-origin=*",), "2, 4, 6"), ((), "failed: ")])
def test_the_page_of_the_docs_calls_a_model(tmp_path: Path, flags: tuple[str, ...], shown: str) -> None:
    (page,) = re.findall(r"^```html\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text(f'<meta charset="utf-8">{page}')
    write_new_model(tmp_path / "twice")
    handler = functools.partial(_Quiet, directory=str(tmp_path / "pages"))
    with (
        Serving(tmp_path / "twice", *flags) as server,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages,
    ):
        serving = threading.Thread(target=pages.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{pages.server_address[1]}/?server=http://127.0.0.1:{server.port}"
            assert PROGRAM is not None
            command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000", "--dump-dom", url]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_S)
        finally:
            pages.shutdown()
            serving.join()
    (answer,) = re.findall(r'<output id="answer">(.*?)</output>', done.stdout)
    assert answer.startswith(shown), done.stdout + done.stderr
