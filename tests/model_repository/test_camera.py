"""The example that follows a camera, as docs/guides/video.md shows it: its boxes, its client, and its page."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.documentation.pages import DOCS, ROOT, Block, blocks
from tests.documentation.reader import Reader
from tests.model_repository.test_examples import fetched  # noqa: F401
from tests.real_server import WORK_S, Serving
from tools.browser import PROGRAM, Browser

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fetched")]
cv2 = pytest.importorskip("cv2", reason="`make examples` installs it")
av = pytest.importorskip("av", reason="`make examples` installs it")
pytest.importorskip("scipy", reason="`make examples` installs it")

MODELS = ("camera", "camera_picture", "face_detector", "face_tracker", "faces")
RATE = 25


@pytest.fixture(scope="module")
def clips() -> Any:
    """The module that makes the clip; the clip is there."""
    path = ROOT / "model_repository" / "camera" / "make_clip.py"
    spec = importlib.util.spec_from_file_location("make_clip", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, clips: Any, fetched: None) -> Path:  # noqa: F811
    """A copy of the example, with its clip."""
    folder = copy(tmp_path_factory.mktemp("served"))
    clips.make(folder / "camera" / "clips" / "faces.mp4", 4)
    return folder


def copy(here: Path, *others: str) -> Path:
    """A copy of the example in this folder, without clips, and of other models without their networks."""
    for model in (*MODELS, *others):
        shutil.copytree(
            ROOT / "model_repository" / model,
            here / "model_repository" / model,
            ignore=shutil.ignore_patterns("clips", "model.gguf"),
        )
    return here / "model_repository"


@pytest.fixture(scope="module")
def serving(repository: Path) -> Iterator[Serving]:
    with Serving(repository, "--http-cors-origin=*") as server:
        server.patience_s = WORK_S
        server.wait_until_ready()
        yield server


def best(box: Any, known: Any) -> int:
    """Which of the known boxes this one is; the two overlap by half at least."""
    box, known = np.asarray(box), np.asarray(known)
    corners = np.maximum(box[:2], known[:, :2]), np.minimum(box[2:], known[:, 2:])
    common = (corners[1] - corners[0]).clip(0).prod(1)
    overlap = common / ((box[2:] - box[:2]).prod() + (known[:, 2:] - known[:, :2]).prod(1) - common)
    assert overlap.max() > 0.5, (box, known)
    return int(overlap.argmax())


def test_a_face_keeps_its_identity(serving: Serving, clips: Any) -> None:
    """Each box lies where the clip has a face, and all boxes of an identity are the same face."""
    body = json.dumps({"SOURCE": "file:faces.mp4"}).encode()
    answer = serving.request("POST", "/v2/models/camera/generate_stream", body)
    events = [json.loads(line) for line in re.findall(r"^data: ?(.*)$", answer.body.decode(), re.MULTILINE)]
    frames = [event for event in events if "NUMBER" in event]
    assert [event["EVENT"][0] for event in events if "EVENT" in event] == ["opened", "ended"]
    assert [event["NUMBER"] for event in frames] == list(range(4 * RATE))
    faces: dict[int, set[int]] = {}
    seen = 0
    for event in frames:
        known = clips.boxes(event["NUMBER"] / RATE)
        for identity, box in zip(np.ravel(event["TRACK_IDS"]), np.reshape(event["TRACK_BOXES"], (-1, 4)), strict=True):
            faces.setdefault(int(identity), set()).add(best(box, known))
            seen += 1
    assert sorted(map(sorted, faces.values())) == [[0], [1], [2]]
    # From the second frame on all three are seen, but while one hides another.
    assert seen > 0.9 * 3 * len(frames)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[int]:
    """The port at which the folder of the page is served, as the guide says to do."""
    handler = functools.partial(_Quiet, directory=str(ROOT / "model_repository" / "camera"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome on this machine")
def test_the_page_shows_boxes_as_they_come(serving: Serving, clips: Any, pages: int, tmp_path: Path) -> None:
    """They are those of the frame whose picture is drawn. A detector that is killed costs events, not the stream."""
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"http://127.0.0.1:{pages}/live.html?server=http://127.0.0.1:{serving.port}")
        browser.until("document.readyState === 'complete'")
        browser.run("document.querySelector('button').click()")
        browser.until("JSON.parse(document.body.dataset.drawn ?? '[0]')[0] >= 10")
        number, identities, corners = json.loads(browser.run("document.body.dataset.drawn"))
        known = clips.boxes(number / RATE)
        assert sorted(best(box, known) for box in np.reshape(corners, (-1, 4))) == [0, 1, 2]
        assert sorted(identities) == [1, 2, 3]
        for pid in serving.stub_pids():
            if b"face_detector" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        browser.until("document.getElementById('event').textContent.startsWith('ended')")
        assert "faces" in browser.run("document.getElementById('figures').textContent")
        # A sky that is not blank, and a box in the color of its identity
        colors = "new Set(pen.getImageData(0, 0, 640, 360).data).size"
        assert browser.run(colors.replace("pen", "document.querySelector('canvas').getContext('2d')")) > 200


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome on this machine")
def test_the_page_says_what_is_refused(serving: Serving, pages: int, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"http://127.0.0.1:{pages}/live.html?server=http://127.0.0.1:{serving.port}")
        browser.until("document.readyState === 'complete'")
        browser.run("document.getElementById('source').value = 'file:none.mp4'")
        browser.run("document.querySelector('button').click()")
        browser.until("document.getElementById('event').textContent.startsWith('failed: ')")
        assert "none.mp4" in browser.run("document.getElementById('event').textContent")


def test_a_reader_gets_what_the_guide_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path
    monkeypatch.chdir(here)
    # What the guide writes lies in a copy of its own: the server of the other tests shows the clip that lies in theirs.
    client = copy(here, "smollm2", "ocr_text") / "camera" / "client.py"
    reader = Reader(here)
    try:
        # Its port is not the usual one.
        reader.follow(Block("", str(client), client.read_text(), ""))
        for block in blocks((DOCS / "guides" / "video.md").read_text().partition("## An example")[2]):
            reader.follow(block)
    finally:
        reader.close()
    with av.open(str(here / "seen.mp4")) as video:
        assert video.streams.video[0].frames == 250
    picture = cv2.imread(str(here / "seen.jpg"))
    assert picture.shape == (360, 640, 3)
    shown = cv2.imread(str(DOCS / "images" / "camera-faces.jpg"))
    assert np.abs(picture.astype(int) - cv2.resize(shown, (640, 360))).mean() < 10
