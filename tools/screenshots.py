"""Makes the pictures in docs/images, of the status page and of the page to try models on, from real servers.

`python -m tools.screenshots` makes all, `--only=try` or `--only=status` some.

The server runs in a folder of its own, with models that take a while, one that fails now and then, one whose stub has
died once, and one that wants a GPU. Requests come for half a minute, in which the page's data are asked for, so that it
has a history. Then a headless Chromium takes four pictures: on a desktop and on a phone, light and dark.

Nothing of this machine may be in them: the script refuses a page that shows its name, its user or a path of it.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tools.browser import PROGRAM, Browser

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
# Name, width and height in points, pixels per point, dark
PICTURES = (
    ("status-desktop-light", 1180, 1080, 1, False),
    ("status-desktop-dark", 1180, 1080, 1, True),
    ("status-phone-light", 500, 1180, 1, False),
    ("status-phone-dark", 500, 1180, 1, True),
)
# Name, page with the models, the model that is asked, width and height; a model of images is asked with IMAGE
TRIED = (
    ("try-desktop-light", "index.md", "double", 1000, 620),
    ("try-image", "guides/gallery.md", "outlines", 1000, 1030),
)
IMAGE = "try-desktop-light"
MOST_BYTES = 150_000

MODEL = """
    import random, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(random.uniform({low}, {high}))
            answers = []
            for request in requests:
                values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
                error = pb_utils.TritonError({error!r}) if values[0, 0] < 0 else None
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", values * 2)], error))
            return answers
"""
CONFIG = """
    backend: "python"
    max_batch_size: 16
    input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 64 ] }} ]
    output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 64 ] }} ]
    dynamic_batching {{ }}
    instance_group [ {{ count: {count} }} ]
"""
# Milliseconds that a batch takes, and instances
MODELS = {"detector": (8, 30, 2), "classifier": (2, 6, 2), "embedding": (1, 3, 1)}
REFUSED = "the picture is smaller than 32 x 32"
ON_GPU = CONFIG.replace("{{ count: {count} }}", "{{ kind: KIND_GPU count: {count} }}")


def write_models(folder: Path) -> None:
    for name, (low, high, count) in MODELS.items():
        source = MODEL.format(low=low / 1000, high=high / 1000, error=REFUSED)
        _write(folder / name, source, CONFIG.format(count=count))
    _write(folder / "segmentation", MODEL.format(low=0, high=0, error=""), ON_GPU.format(count=1))


def _write(folder: Path, source: str, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(source))
    (folder / "config.pbtxt").write_text(textwrap.dedent(config))


class Asking:
    """Clients that ask for as long as the context lasts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(name, number)) for name in MODELS for number in range(3)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, model: str, number: int) -> None:
        pick = random.Random(number)
        began = time.monotonic()
        while not self._over.is_set():
            # More and less, as in a day
            busy = 0.5 + 0.5 * ((time.monotonic() - began) / 10 % 1)
            wrong = model == "detector" and pick.random() < 0.02
            data = [-1.0 if wrong else pick.random()] * 64
            body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 64], "data": data}]}
            url = f"http://127.0.0.1:{self._port}/v2/models/{model}/infer"
            try:
                urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=60).read()
            except urllib.error.HTTPError as refused:
                refused.close()
            self._over.wait(pick.expovariate(1) * 0.03 / busy)


def serve(folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """A server, and its ports."""
    command = [sys.executable, "-m", "stubserve", "serve", "models", "--http-address=127.0.0.1", "--http-port=0"]
    command += ["--metrics-port=0", "--allow-grpc=false", "--exit-on-error=false", "--shm-limit=2G"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    ports: dict[str, int] = {}
    for line in process.stdout:
        found = re.search(r"Started (HTTPService|Metrics Service) at \S+:(\d+)", line)
        if found is not None:
            ports[found[1]] = int(found[2])
            if len(ports) == 2:
                break
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, ports


def status(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=60) as answer:
        return json.load(answer)


def refuse_what_is_ours(text: str, folder: Path) -> None:
    """Raises SystemExit where the page's data tell of this machine."""
    for secret in (socket.gethostname(), getpass.getuser(), str(folder), str(Path.home()), sys.prefix):
        if re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text):
            raise SystemExit(f"the page shows '{secret}', which is this machine's")


def take(url: str, folder: Path, name: str, width: int, height: int, scale: int, dark: bool) -> Path:
    """A picture of a page."""
    assert PROGRAM is not None
    picture = folder / f"{name}.png"
    command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder}/browser", f"--screenshot={picture}", f"--window-size={width},{height}"]
    command += [f"--force-device-scale-factor={scale}", "--virtual-time-budget=4000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the pictures in docs/images.")
    parser.add_argument("--only", choices=("status", "try"), help="the pictures of this page alone")
    parser.add_argument("--seconds", type=float, default=30, help="how long requests come before (30)")
    parser.add_argument("--into", type=Path, default=IMAGES, help="the folder for the pictures (docs/images)")
    options = parser.parse_args()
    if PROGRAM is None:
        raise SystemExit("this needs chromium")
    options.into.mkdir(parents=True, exist_ok=True)
    if options.only != "try":
        with tempfile.TemporaryDirectory() as made:
            take_status(Path(made), options.seconds, options.into)
    if options.only != "status":
        for wanted in TRIED:
            with tempfile.TemporaryDirectory() as made:
                take_try(Path(made), options.into, *wanted)


def take_try(folder: Path, into: Path, name: str, page: str, model: str, width: int, height: int) -> None:
    """A model of a page of the docs, asked."""
    text = (DOCS / page).read_text()
    for title, file in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        if title.startswith(f"models/{model}/"):
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(file)
    process, ports = serve(folder)
    try:
        with Browser(folder / "browser") as browser:
            browser.open(f"http://127.0.0.1:{ports['HTTPService']}/try", width, height)
            browser.until("document.querySelector('#inputs textarea')")
            if browser.run("Boolean(document.querySelector('#inputs input[type=file]'))"):
                browser.choose_file("#inputs input[type=file]", into / f"{IMAGE}.png")
            # Some times, as the first answer takes longer than those after it
            for _ in range(5):
                browser.run("delete document.body.dataset.answered; at('ask').click()")
                browser.until("document.body.dataset.answered")
            browser.screenshot(into / f"{name}.png")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def take_status(folder: Path, seconds: float, into: Path) -> None:
    """The status page of a server that has been asked for a while."""
    write_models(folder / "models")
    process, ports = serve(folder)
    try:
        with Asking(ports["HTTPService"]):
            end = time.monotonic() + seconds
            died = False
            while time.monotonic() < end:
                shown = status(ports["Metrics Service"])
                if not died and time.monotonic() > end - seconds / 2:
                    rows = {row["name"]: row for row in shown["models"]}
                    os.kill(rows["classifier"]["instances"][1]["pid"], signal.SIGKILL)
                    died = True
                time.sleep(1)
            refuse_what_is_ours(json.dumps(status(ports["Metrics Service"])), folder)
            url = f"http://127.0.0.1:{ports['Metrics Service']}/"
            for wanted in PICTURES:
                picture = take(url, folder, *wanted)
                if picture.stat().st_size > MOST_BYTES:
                    raise SystemExit(f"{picture.name} has {picture.stat().st_size} bytes, {MOST_BYTES} at most")
                shutil.copy(picture, into / picture.name)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
