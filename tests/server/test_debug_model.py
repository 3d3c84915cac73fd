"""`breakpoint()` in a model, on a real pseudo-terminal."""

from __future__ import annotations

import termios
import threading
from pathlib import Path

import numpy as np

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, write_model
from tests.server.terminal import Terminal

STOPPING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            secret = 41
            breakpoint()
            array = requests[0].inputs()[0].as_numpy() + secret
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]
"""


def ask(server: Serving, answers: list[Answer]) -> threading.Thread:
    """Asks the model that stops, in a thread: the answer comes when a person has let it go on."""
    asking = threading.Thread(target=lambda: answers.append(server.infer_array("stops", np.zeros(2, np.float32))))
    asking.start()
    return asking


def test_a_person_can_stop_in_a_model_and_go_on(repository: Path) -> None:
    write_model(repository, "stops", STOPPING)
    server = Serving(repository, "--debug-model=stops")
    with Terminal(server) as terminal:
        terminal.serving()
        answers: list[Answer] = []
        asking = ask(server, answers)
        terminal.expect(r"\(Pdb\) ")
        terminal.type("secret + 1\n")
        terminal.expect(r"42\r?\n")
        terminal.expect(r"\(Pdb\) ")
        terminal.type("continue\n")
        asking.join(PATIENCE_S)
        np.testing.assert_array_equal(binary_output(answers[0]), [41, 41])


def test_ctrl_c_ends_a_model_that_stands_at_a_breakpoint_and_leaves_the_terminal_as_it_was(repository: Path) -> None:
    write_model(repository, "stops", STOPPING)
    server = Serving(repository, "--debug-model=stops")
    with Terminal(server) as terminal:
        terminal.serving()
        modes = termios.tcgetattr(terminal.descriptor)
        answers: list[Answer] = []
        asking = ask(server, answers)
        terminal.expect(r"\(Pdb\) ")
        terminal.type("\x03")
        terminal.expect("Waiting for in-flight requests")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.descriptor) == modes
    asking.join(PATIENCE_S)
    assert answers[0].status == 500


def test_without_a_terminal_the_model_goes_on_and_the_flag_is_explained(repository: Path) -> None:
    folder = write_model(repository, "stops", STOPPING)
    with Serving(repository) as server:
        for _ in range(2):
            answer = server.infer_array("stops", np.zeros(2, np.float32))
            np.testing.assert_array_equal(binary_output(answer), [41, 41])
        server.wait_for(
            rf"W.* model\.py:7\] \"instance 'stops_0' went on at a breakpoint\(\) in {folder}/1/model\.py, line 7: .* "
            r"--debug-model=NAME"
        )
        assert server.output.count("went on at a breakpoint") == 1


def test_a_name_that_no_model_has_is_refused(repository: Path) -> None:
    write_model(repository, "stops", STOPPING)
    server = Serving(repository, "--debug-model=stop")
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    server.wait_for("--debug-model=stop: there is no model of that name; did you mean 'stops'?")
