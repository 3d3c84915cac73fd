"""A headless Chromium or Chrome, driven by its own protocol over a pipe: pages are opened, filled in and read."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE_S = 60.0


class Browser:
    """One page of a browser of its own, as a context manager; its profile lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]

        def as_three_and_four() -> None:
            # To free numbers above both first, for either may be one of them
            low, high = (fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (to_browser, from_browser))
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            command, preexec_fn=as_three_and_four, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""

    def __enter__(self) -> Browser:
        try:
            targets = self._ask("Target.getTargets")["targetInfos"]
            target = next(one["targetId"] for one in targets if one["type"] == "page")
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, url: str, width: int = 1000, height: int = 800) -> None:
        """Opens a page in a window of a size in pixels."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it comes to."""
        answer = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"{script} is not true on {self.run('document.body.innerText')}"
            time.sleep(0.02)

    def choose_file(self, selector: str, file: Path) -> None:
        """Gives a file to an input, as a person does in its dialog."""
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        node = self._ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._ask("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the page (PNG)."""
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                received = os.read(self._read, 1 << 16)
                assert received, "the browser is gone"
                self._rest += received
            text, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
