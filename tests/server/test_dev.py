"""`stubserve serve --dev`: what is saved is served, and what is wrong with it is told."""

from __future__ import annotations

import os
import shutil
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, eventually, write_model
from tests.server.terminal import Terminal

ADDS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy() + {number}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("{output}", array)])]
"""


def adds(number: int, output: str = "OUTPUT0") -> str:
    return ADDS.format(number=number, output=output)


def answer(server: Serving) -> float:
    return float(binary_output(server.infer_array("adds", np.zeros(1, np.float32)))[0])


def test_what_is_saved_is_served_and_what_is_broken_is_not(repository: Path) -> None:
    write_model(repository, "adds", adds(1))
    with Serving(repository, "--dev") as server:
        assert answer(server) == 1
        write_model(repository, "adds", adds(2))
        eventually(lambda: answer(server) == 2)
        write_model(repository, "adds", adds(3).replace("class", "clas"))
        server.wait_for(r"failed to load 'adds' version 1: Internal: SyntaxError: .*\n +File .*/adds/1/model.py")
        server.wait_for("model 'adds' could not be loaded again: the old code goes on serving")
        assert answer(server) == 2
        write_model(repository, "adds", adds(4))
        eventually(lambda: answer(server) == 4)
        write_model(repository, "new", adds(5))
        server.wait_for("successfully loaded 'new'")


def test_where_files_cannot_be_watched_they_are_looked_at(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "adds", adds(1))
    (tmp_path / "watchfiles.py").write_text(
        "async def awatch(*paths, **options):\n    raise OSError('no watches left')\n    yield\n"
    )
    with Serving(repository, "--dev", environment={"PYTHONPATH": str(tmp_path)}) as server:
        server.wait_for("files cannot be watched, so they are checked every second: no watches left")
        write_model(repository, "adds", adds(2))
        eventually(lambda: answer(server) == 2)


def test_a_start_with_a_broken_model_waits_for_the_next_save(repository: Path) -> None:
    write_model(repository, "adds", "import nothing_of_that_name\n")
    with Serving(repository, "--dev") as server:
        write_model(repository, "adds", adds(1))
        server.wait_for("successfully loaded 'adds'")
        assert answer(server) == 1


def test_a_file_without_a_version_is_watched_where_it_lies(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "adds", adds(1))
    file = (folder / "1" / "model.py").rename(folder / "adds.py")
    (folder / "1").rmdir()
    config = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(config + 'default_model_filename: "adds.py"\n')
    with Serving(file, "--dev") as server:
        assert answer(server) == 1
        file.write_text(file.read_text().replace("+ 1", "+ 2"))
        eventually(lambda: answer(server) == 2)


def test_each_save_is_checked(repository: Path) -> None:
    folder = write_model(repository, "adds", adds(1))
    config = (folder / "config.pbtxt").read_text()
    with Serving(repository, "--dev") as server:
        # Each is loaded all the same, and only a check sees it.
        write_model(repository, "adds", adds(2) + "        def finalise(self): pass\n")
        server.wait_for(r"/adds/1/model.py:8: warning: the server never calls the method `finalise`; did you mean `fin")
        template = 'parameters { key: "K" value: { string_value: "${UNFILLED}" } }\n'
        (folder / "config.pbtxt").write_text(config + template)
        server.wait_for(r"/adds/config.pbtxt:\d+: warning: .*UNFILLED")
        assert answer(server) == 2


def test_a_repository_may_be_named_from_where_one_is(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As most people name it: `stubserve serve models --dev`."""
    monkeypatch.chdir(repository.parent)
    write_model(repository, "adds", adds(1) + "        def finalise(self): pass\n")
    with Serving(Path(repository.name), "--dev") as server:
        server.wait_for(r"adds/1/model.py:8: warning: the server never calls the method `finalise`; did you mean `fin")


def test_a_traceback_shows_the_lines_that_ran(repository: Path) -> None:
    failing = adds(1).replace("array =", "1 / 0 # the line that ran\n            array =")
    write_model(repository, "adds", failing)
    with Serving(repository, "--dev") as server:
        assert server.infer_array("adds", np.zeros(1, np.float32)).status == 500
        server.wait_for(r"1 / 0 # the line that ran")
        write_model(repository, "adds", "\n" * 7 + "# a new line in its place\n" + failing.replace("class", "clas"))
        server.wait_for("model 'adds' could not be loaded again: the old code goes on serving")
        told = len(server.output)
        assert server.infer_array("adds", np.zeros(1, np.float32)).status == 500
        eventually(lambda: "ZeroDivisionError" in server.output[told:])
        assert "1 / 0 # the line that ran" in server.output[told:]
        assert "a new line in its place" not in server.output[told:]


def test_a_missing_return_is_told_in_the_log_too(repository: Path) -> None:
    write_model(repository, "adds", adds(1).replace("return [", "responses = ["))
    with Serving(repository, "--dev") as server:
        refused = server.infer_array("adds", np.zeros(1, np.float32))
        assert "Is `return responses` missing" in refused.error
        server.wait_for(r"Model 'adds_0' let go of .* Is `return responses` missing at the end of `execute`\?")


UNKNOWN = "model 'adds': output 'OUTPUT1' is not in its configuration"


@pytest.mark.parametrize("output", ["OUTPUT1", "OUTPUT0"])
def test_wrong_outputs_are_refused(repository: Path, output: str) -> None:
    source = adds(1, output).replace("array =", "array = __import__('numpy').float64(1) *")
    write_model(repository, "adds", source)
    with Serving(repository, "--dev") as server:
        refused = server.infer_array("adds", np.zeros(1, np.float32))
        assert refused.status == 500
        if output == "OUTPUT1":
            missing = "output 'OUTPUT0' is not among the outputs that it answered ('OUTPUT1')"
            assert refused.error == f"{UNKNOWN}; {missing}"
        else:
            assert refused.error.endswith("output 'OUTPUT0' is TYPE_FP64, and its configuration says TYPE_FP32")
        write_model(repository, "adds", adds(1))
        eventually(lambda: server.infer_array("adds", np.zeros(1, np.float32)).status == 200)


@pytest.mark.parametrize("flags", [(), ("--check-outputs=always",)])
def test_outputs_that_are_not_those_of_the_configuration_are_told(repository: Path, flags: tuple[str, ...]) -> None:
    write_model(repository, "adds", adds(1, output="OUTPUT1"))
    with Serving(repository, *flags) as server:
        refused = server.infer_array("adds", np.zeros(1, np.float32))
        assert (refused.status, refused.error.partition(";")[0]) == (500, UNKNOWN)
        server.wait_for(UNKNOWN)
        server.wait_for(r"model 'adds': output 'OUTPUT0' is not among the outputs that it answered \('OUTPUT1'\)")


def test_nothing_is_told_where_nobody_wants_it(repository: Path) -> None:
    write_model(repository, "adds", adds(1, output="OUTPUT1"))
    with Serving(repository, "--check-outputs=never") as server:
        assert server.infer_array("adds", np.zeros(1, np.float32)).status == 200
        assert server.stop() == 0
        assert "OUTPUT1" not in server.output


def test_any_model_may_be_debugged(repository: Path) -> None:
    write_model(repository, "adds", adds(1).replace("array =", "breakpoint(); array ="))
    server = Serving(repository, "--dev")
    with Terminal(server) as terminal:
        terminal.serving()
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(server.infer_array("adds", np.zeros(1, np.float32))))
        asking.start()
        terminal.expect(r"\(Pdb\) ")
        terminal.type("continue\n")
        asking.join(PATIENCE_S)
        assert float(binary_output(answers[0])[0]) == 1


def test_other_ways_of_model_control_are_refused(repository: Path) -> None:
    server = Serving(repository, "--dev", "--model-control-mode=explicit")
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    server.wait_for("--dev loads what changes on disk, and --model-control-mode=explicit says otherwise")


# Says so, and goes on for ever.
ENDLESS = 'print("entangled", flush=True)\nwhile True:\n    pass\n'


@pytest.mark.parametrize("where", ["import", "initialize"])
def test_a_load_that_never_ends_is_ended_by_the_next_save(repository: Path, where: str) -> None:
    method = adds(0) + "        def initialize(self, args):\n" + textwrap.indent(ENDLESS, " " * 12)
    endless = ENDLESS if where == "import" else method
    write_model(repository, "adds", adds(1))
    with Serving(repository, "--dev") as server:
        write_model(repository, "adds", endless)
        server.wait_for("entangled")
        assert answer(server) == 1
        write_model(repository, "other")  # which has nothing to do with it
        server.wait_for("successfully loaded 'other'")
        write_model(repository, "adds", endless + "\n")
        server.wait_for_all("entangled", 2)
        write_model(repository, "adds", adds(2))
        eventually(lambda: answer(server) == 2)
        eventually(lambda: len(server.stub_pids()) == 2)
        server.wait_for("the load of 'adds' that is under way is ended")
        assert "the old code goes on serving" not in server.output


def test_a_save_that_is_taken_back_ends_it_too(repository: Path) -> None:
    folder = write_model(repository, "adds", adds(1))
    saved = (folder / "1" / "model.py").stat()
    with Serving(repository, "--dev") as server:
        write_model(repository, "adds", ENDLESS)
        server.wait_for("entangled")
        write_model(repository, "adds", adds(1))
        os.utime(folder / "1" / "model.py", ns=(saved.st_atime_ns, saved.st_mtime_ns))
        server.wait_for("the load of 'adds' that is under way is ended")
        eventually(lambda: len(server.stub_pids()) == 1)
        assert answer(server) == 1


def test_a_model_that_hangs_at_the_start_waits_for_a_save_or_its_end(repository: Path) -> None:
    write_model(repository, "adds", ENDLESS)
    write_model(repository, "gone", ENDLESS)
    write_model(repository, "other")
    server = Serving(repository, "--dev")
    server.start()
    try:
        server.wait_for_all("entangled", 2)
        server.wait_for("successfully loaded 'other'")
        write_model(repository, "adds", adds(2))
        shutil.rmtree(repository / "gone")
        server.port = int(server.wait_for(r"Started HTTPService at [^ \n]*:(\d+)")[1])
        assert answer(server) == 2
    finally:
        server.stop()
