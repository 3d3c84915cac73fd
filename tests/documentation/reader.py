"""Somebody who does what a page says: writes its files, types its commands, and looks at what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tomllib

from tests.documentation.pages import ROOT, Block, words_of
from tests.real_server import Serving

# What stands for the ports of a server that takes any that are free
_PLACES = {"localhost:8000": "port", "localhost:8001": "grpc_port", "localhost:8002": "metrics_port"}
TIMEOUT_S = 600


class Reader:
    """Follows a page in the folder `here`, which has to be the working folder. To be closed."""

    def __init__(self, here: Path) -> None:
        self._here = here
        self._files: dict[Path, str] = {}
        self._server: Serving | None = None
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()

    def follow(self, block: Block) -> None:
        """Does what a block says. Raises AssertionError where that does not come to what it shows."""
        if block.why_not:
            return
        if block.title:
            path = self._here / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[path] = block.text
            path.write_text(self._at_its_place(block.text))
        elif block.language == "python":
            self._run([sys.executable, "-W", "error", "-c", self._at_its_place(block.text)], "")
        for command, printed in block.commands:
            self._type(command, printed)

    def _type(self, command: str, printed: str) -> None:
        words = words_of(command)
        if words[0] == "stubserve" and words[1] == "serve":
            self._serve(words[2:])
            for line in printed.splitlines():
                assert self._server is not None
                # It takes a port that is free, on this machine alone.
                self._server.wait_for(re.sub(r"[0-9\\.]+:[0-9]+", r"[0-9.]+:[0-9]+", _pattern(line.strip())))
        elif words[:2] == ["pip", "install"]:
            check_installation(words[2:])
        else:
            self._run(["bash", "-euo", "pipefail", "-c", self._at_its_place(command)], printed)

    def _serve(self, words: list[str]) -> None:
        if self._server is not None:
            self._server.stop()
        repository, *flags = words
        self._server = Serving(self._here / repository, *flags).__enter__()
        self._environment["STUBSERVE_URL"] = f"http://127.0.0.1:{self._server.port}"
        for path, text in self._files.items():
            if any(place in text for place in _PLACES):
                path.write_text(self._at_its_place(text))

    def _run(self, command: list[str], printed: str) -> None:
        done = subprocess.run(
            command,
            cwd=self._here,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        shown = f"{command[-1]}\n{done.stdout}"
        if printed:
            assert re.fullmatch(_pattern(printed.strip()), done.stdout.strip(), re.DOTALL), (
                f"{shown}\nshould print\n{printed}"
            )
        else:
            assert done.returncode == 0, shown

    def _at_its_place(self, text: str) -> str:
        """The text with the addresses of the server that runs."""
        if self._server is not None:
            for place, port in _PLACES.items():
                if place in text:
                    text = text.replace(place, f"127.0.0.1:{getattr(self._server, port)}")
        return text


def check_installation(words: list[str]) -> None:
    """What pip is told to install is this package, with extras that it has, or something else's name."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        match = re.fullmatch(r"stubserve(?:\[([\w,-]*)\])?(?:[=<>~]=?[\d.]+)?", word)
        if match is None:
            assert not word.startswith("stubserve"), word
        else:
            assert set(filter(None, (match[1] or "").split(","))) <= set(extras), word


def _pattern(text: str) -> str:
    return re.escape(text).replace(re.escape("..."), ".*")
