"""Somebody who does what a page says: writes its files, types its commands, and looks at what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from tests.documentation.pages import ROOT, Block, words_of
from tests.real_server import Serving

# What stands for the ports of a server that takes any that are free
_PLACES = {"localhost:8000": "port", "localhost:8001": "grpc_port", "localhost:8002": "metrics_port"}
# How a shell runs a text that is pasted, without what its user has set
_SHELLS = {
    "bash": ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c"],
    "zsh": ["zsh", "-f", "-euo", "pipefail", "-c"],
}
# Those of this machine, for the tests that follow a page
IN_EACH_SHELL = [
    pytest.param(name, marks=[] if name == "bash" else [pytest.mark.long]) for name in _SHELLS if shutil.which(name)
]
TIMEOUT_S = 600


class Reader:
    """Follows a page in the folder `here`, which has to be the working folder. To be closed.

    Commands are handed to the shell as they stand in the page.
    """

    def __init__(self, here: Path, shell: str = "bash") -> None:
        self._here = here
        self._shell = _SHELLS[shell]
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
        words = words_of(command)[:2]
        if words == ["stubserve", "serve"]:
            self._serve(self._taken("stubserve", command)[1:])
            for line in printed.splitlines():
                assert self._server is not None
                # It takes a port that is free, on this machine alone.
                self._server.wait_for(re.sub(r"[0-9\\.]+:[0-9]+", r"[0-9.]+:[0-9]+", _pattern(line.strip())))
        elif words == ["pip", "install"]:
            check_installation(self._taken("pip", command)[1:])
        else:
            self._run([*self._shell, self._at_its_place(command)], printed)

    def _taken(self, program: str, command: str) -> list[str]:
        """What the program is given by the shell."""
        shown = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{command}"
        done = subprocess.run([*self._shell, shown], cwd=self._here, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout.split("\0")[:-1]

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
