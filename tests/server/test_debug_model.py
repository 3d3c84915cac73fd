"""`breakpoint()` in a model, on a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import threading
import time
from pathlib import Path

import numpy as np

from tests.real_server import Answer, Serving, binary_output, write_model

STOPPING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            secret = 41
            breakpoint()
            array = requests[0].inputs()[0].as_numpy() + secret
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]
"""


class Terminal:
    """The person's end of a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.text = ""

    def expect(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        """Reads until what has come since the last match holds `pattern`."""
        deadline = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.text)
            if match:
                self.text = self.text[match.end() :]
                return match
            ready, _, _ = select.select([self.descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"no {pattern!r} on the terminal:\n{self.text}"
            self.text += os.read(self.descriptor, 65536).decode()

    def type(self, line: str) -> None:
        os.write(self.descriptor, line.encode() + b"\n")


def test_a_person_can_stop_in_a_model_and_go_on(repository: Path) -> None:
    write_model(repository, "stops", STOPPING)
    server = Serving(repository, "--debug-model=stops")
    child, descriptor = pty.fork()
    if child == 0:
        os.execvpe(server.command[0], server.command, server.environment)
    terminal = Terminal(descriptor)
    try:
        server.port = int(terminal.expect(r"Started HTTPService at [^ ]*:(\d+)")[1])
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(server.infer_array("stops", np.zeros(2, np.float32))))
        asking.start()
        terminal.expect(r"\(Pdb\) ")
        terminal.type("secret + 1")
        terminal.expect(r"42\r?\n")
        terminal.expect(r"\(Pdb\) ")
        terminal.type("continue")
        asking.join(30)
        np.testing.assert_array_equal(binary_output(answers[0]), [41, 41])
    finally:
        os.kill(child, 15)
        os.waitpid(child, 0)
        os.close(descriptor)
