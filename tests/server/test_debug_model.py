"""`breakpoint()` in a model, on a real pseudo-terminal."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from tests.real_server import Answer, Serving, binary_output, write_model
from tests.terminal import Terminal

STOPPING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            secret = 41
            breakpoint()
            array = requests[0].inputs()[0].as_numpy() + secret
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]
"""


def test_a_person_can_stop_in_a_model_and_go_on(repository: Path) -> None:
    write_model(repository, "stops", STOPPING)
    server = Serving(repository, "--debug-model=stops")
    with Terminal(server) as terminal:
        terminal.serving()
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(server.infer_array("stops", np.zeros(2, np.float32))))
        asking.start()
        terminal.expect(r"\(Pdb\) ")
        terminal.type("secret + 1\n")
        terminal.expect(r"42\r?\n")
        terminal.expect(r"\(Pdb\) ")
        terminal.type("continue\n")
        asking.join(30)
        np.testing.assert_array_equal(binary_output(answers[0]), [41, 41])
