"""The page docs/deployment/several-servers.md: its servers run side by side, on free ports in place of its own."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS, blocks
from tests.documentation.reader import IN_EACH_SHELL, Reader
from tests.real_server import Serving

PAGE = DOCS / "deployment" / "several-servers.md"
# The ports of HTTP and gRPC where a command names none
DEFAULTS = ["--http-port=8000", "--grpc-port=8001"]
PORT = re.compile(r"\b80[0-2][0-3]\b")


class ReaderOfSeveral(Reader):
    """Starts each server beside those that run, as `&` behind its command says.

    `ports` has what stands for each port of the page.
    """

    def __init__(self, here: Path, shell: str, ports: dict[str, int]) -> None:
        super().__init__(here, shell)
        self._ports = ports
        self.servers: list[Serving] = []

    def close(self) -> None:
        for server in self.servers:
            server.stop()

    def _serve(self, words: list[str]) -> None:
        repository, *flags = map(self._at_its_place, [words[0], *DEFAULTS, *words[1:]])
        self._server = Serving(self._here / repository, *flags).__enter__()
        self.servers.append(self._server)

    def _at_its_place(self, text: str) -> str:
        return PORT.sub(lambda found: str(self._ports[found[0]]), text)


@pytest.mark.parametrize("shell", IN_EACH_SHELL)
def test_a_reader_gets_what_the_page_shows(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        ports = {}
        for port in {"8000", "8001", *PORT.findall(text)}:
            # Taken, so that nobody else gets it, and not listened on
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            taken.bind(("127.0.0.1", 0))
            ports[port] = taken.getsockname()[1]
        reader = ReaderOfSeveral(tmp_path, shell, ports)
        stack.callback(reader.close)
        for block in blocks(text):
            reader.follow(block)
        assert len(reader.servers) == 4
        answered = [
            re.search(r'request_success\{model="echo",version="1"\} (\d+)', one.metrics().body.decode())
            for one in reader.servers[:2]
        ]
        counts = [int(one[1]) for one in answered if one is not None]
        assert sum(counts) == 40
        assert all(counts)
