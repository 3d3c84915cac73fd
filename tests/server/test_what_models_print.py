"""What models write to their output, and how their errors look in the log."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from tests.real_server import IDENTITY, PATIENCE_S, Serving, write_model

PRINTS = (
    IDENTITY
    + """
        def initialize(self, args):
            import sys
            print("to stdout\\nin two lines")
            print("to stderr", file=sys.stderr)
            print("without an end", end="", flush=True)
"""
)

FAILS = """
    class TritonPythonModel:
        def initialize(self, args):
            if args["model_version"] == "1":
                missing = {}["a"]

        def execute(self, requests):
            return self.weights
"""


def test_each_line_carries_the_name_of_its_instance(repository: Path) -> None:
    write_model(repository, "prints", PRINTS)
    with Serving(repository) as server:
        server.wait_for(r"(?m)^\[prints_0\] to stdout\n\[prints_0\] in two lines$")
        server.wait_for(r"(?m)^\[prints_0\] to stderr$")
        server.wait_for(r"(?m)^\[prints_0\] without an end$")
        (pid,) = server.stub_pids()
        shown = subprocess.run(["ps", "-o", "args=", "-ww", str(pid)], capture_output=True, text=True, check=True)
        assert " triton_python_backend_stub prints_0 " in shown.stdout


def test_an_error_of_a_model_shows_its_line(repository: Path) -> None:
    folder = write_model(repository, "fails", FAILS)
    server = Serving(repository)
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    server.wait_for(
        r"failed to load 'fails' version 1: Internal: KeyError: 'a'\"\n"
        r"    Traceback \(most recent call last\):\n"
        rf'      File "{folder}/1/model.py", line 5, in initialize\n'
        r"        missing = \{\}\[\"a\"\]\n"
    )
    assert "\\n" not in server.output


def test_an_error_of_a_request_shows_its_line_in_the_log_and_upstreams_text_to_the_client(repository: Path) -> None:
    folder = write_model(repository, "fails", FAILS, version=2)
    with Serving(repository) as server:
        answer = server.infer_array("fails", np.zeros(2, np.float32))
        assert f"\n\nAt:\n  {folder}/2/model.py(8): execute\n" in answer.error
        server.wait_for(rf'      File "{folder}/2/model.py", line 8, in execute\n        return self.weights\n')
