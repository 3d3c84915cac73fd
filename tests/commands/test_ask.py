"""`stubserve ask`, of a real server."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from stubserve.commands import ask as ask_tool
from tests.real_server import WORK_S, Serving, io_config, write_model

WORDS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for word in request.inputs()[0].as_numpy().flat[0].decode().split():
                    word = np.array([[word.encode()]], object)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", word)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PICTURE = b"\x89PNG\x00\xff" * 40
ARRAY = np.arange(300, dtype=np.float64).reshape(2, 150)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("ask")
    write_model(folder, "rows", config=io_config(max_batch_size=8))
    write_model(folder, "plain", config=io_config(dims="2, 3"))
    write_model(folder, "text", config=io_config("STRING", "1", max_batch_size=4))
    write_model(folder, "half", config=io_config("FP16", "3"))
    write_model(folder, "small", config=io_config("UINT8"))
    write_model(folder, "flags", config=io_config("BOOL", "2"))
    write_model(folder, "large", config=io_config(dims="3, 224, 224"))
    write_model(folder, "words", WORDS, io_config("STRING", "1", 4, "model_transaction_policy { decoupled: true }"))
    write_model(folder, "streams", WORDS, io_config("FP16", "1", 0, "model_transaction_policy { decoupled: true }"))
    write_model(folder, "bare", config='backend: "python"\n')
    write_model(folder, "broken", "import nothing_of_that_name\n")
    with Serving(folder, "--exit-on-error=false") as serving:
        yield serving


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A working folder with files to send."""
    (tmp_path / "page.png").write_bytes(PICTURE)
    np.save(tmp_path / "x.npy", ARRAY)
    np.save(tmp_path / "texts.npy", np.array([["a"], ["b"]]))
    return tmp_path


def ask(server: Serving | str, words: str, here: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person types it."""
    url = server if isinstance(server, str) else f"localhost:{server.port}"
    command = [sys.executable, "-m", "stubserve", "ask", *shlex.split(words)]
    environment = {**os.environ, "STUBSERVE_URL": url, "COLUMNS": "80"}
    return subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, timeout=WORK_S, check=False
    )


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("rows INPUT0='[1,2.5,3]'", "OUTPUT0 FP32 [1,3]: [[1. , 2.5, 3. ]]"),
        ("rows INPUT0='[[1,2],[3,4]]'", "OUTPUT0 FP32 [2,2]:\n[[1., 2.],\n [3., 4.]]"),
        ("rows INPUT0=5 --version=1", "OUTPUT0 FP32 [1,1]: [[5.]]"),
        ("--version 1 rows INPUT0=-5", "OUTPUT0 FP32 [1,1]: [[-5.]]"),
        ("text INPUT0=hello", 'OUTPUT0 BYTES [1,1]: [["hello"]]'),
        ("text INPUT0=5", 'OUTPUT0 BYTES [1,1]: [["5"]]'),
        ("text INPUT0='[1] says: é'", 'OUTPUT0 BYTES [1,1]: [["[1] says: é"]]'),
        ("""text INPUT0='[["a"],["b"]]'""", 'OUTPUT0 BYTES [2,1]:\n[["a"],\n ["b"]]'),
        ("""text INPUT0='"@home\\u001b[2J"'""", 'OUTPUT0 BYTES [1,1]: [["@home\\u001b[2J"]]'),
        ("text INPUT0=@page.png", "OUTPUT0 BYTES [1,1]: [[<240 bytes, 89 50 4e 47 00 ff 89 50 …>]]"),
        ("text INPUT0=@texts.npy", 'OUTPUT0 BYTES [2,1]:\n[["a"],\n ["b"]]'),
        ("half INPUT0='[1,2,0.5]'", "OUTPUT0 FP16 [3]: [1. , 2. , 0.5]"),
        ("flags INPUT0='[true,false]'", "OUTPUT0 BOOL [2]: [ True, False]"),
        (
            "rows INPUT0=@x.npy",
            "OUTPUT0 FP32 [2,150]:\n[[  0.,   1.,   2., ..., 147., 148., 149.],\n"
            " [150., 151., 152., ..., 297., 298., 299.]]",
        ),
        ("words INPUT0='one two three'", 'OUTPUT0 BYTES: "one"\nOUTPUT0 BYTES: "two"\nOUTPUT0 BYTES: "three"'),
    ],
)
def test_answers(server: Serving, files: Path, words: str, printed: str) -> None:
    done = ask(server, words, files)
    assert (done.stdout, done.stderr, done.returncode) == (f"{printed}\n", "", 0)


def test_a_text_is_cut_in_the_middle_and_the_json_is_whole(server: Serving) -> None:
    done = ask(server, f"text INPUT0={'a' * 5000}z")
    assert len(done.stdout) < 500
    assert done.stdout.endswith('aaz"]]\n')
    answer = json.loads(ask(server, f"text INPUT0={'a' * 5000}z --json").stdout)
    output = {"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["a" * 5000 + "z"]}
    assert answer == {"model_name": "text", "model_version": "1", "outputs": [output]}
    output = json.loads(ask(server, "half INPUT0='[1,2,0.5]' --json").stdout)["outputs"][0]
    assert output == {"name": "OUTPUT0", "datatype": "FP16", "shape": [3], "data": [1.0, 2.0, 0.5]}
    lines = ask(server, "words INPUT0='one two' --json").stdout.splitlines()
    assert [json.loads(line)["OUTPUT0"] for line in lines] == ["one", "two"]


@pytest.mark.parametrize(
    ("model", "example"),
    [
        ("rows", "INPUT0='[1,2,3]'"),
        ("plain", "INPUT0='[[1,2,3],[4,5,6]]'"),
        ("text", "INPUT0=text"),
        ("flags", "INPUT0='[true,true]'"),
        ("large", "INPUT0=@INPUT0.npy"),
    ],
)
def test_without_inputs_it_says_what_the_model_takes(server: Serving, tmp_path: Path, model: str, example: str) -> None:
    done = ask(server, f"{model} --url=localhost:{server.port}")
    command = f"stubserve ask --url=localhost:{server.port} {model} {example}"
    assert done.stdout.startswith(f"{model} takes\n  INPUT0 (")
    assert done.stdout.splitlines()[-1] == command
    assert ("The first dimension counts rows, " in done.stdout) is (model in ("rows", "text"))
    # What it says to type works.
    np.save(tmp_path / "INPUT0.npy", np.zeros((3, 224, 224), np.float32))
    done = ask(server, command.removeprefix("stubserve ask "), tmp_path)
    assert done.stdout.startswith("OUTPUT0 "), done.stderr


def test_a_model_that_declares_nothing(server: Serving) -> None:
    done = ask(server, "bare")
    assert done.stdout == "bare declares no inputs or outputs, in config.pbtxt or by auto_complete_config.\n"


def test_without_a_model_only_the_model_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs may be left out: the command then prints what the model takes."""
    with pytest.raises(SystemExit):
        ask_tool.run([])
    assert capsys.readouterr().err.endswith("error: the following arguments are required: MODEL\n")


ROWS = "input 'INPUT0' is FP32 of shape [-1,-1], of which the first may be left out: "
TAKES = "takes INPUT0 (FP32 [-1,-1])"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "row INPUT0=1",
            "there is no model 'row'. Did you mean 'rows'? The server has: bare, broken, flags, ",
        ),
        ("broken INPUT0=1", "model 'broken' does not serve: "),
        ("rows --version=7", "Request for unknown model: 'rows' version 7 is not found"),
        ("rows INPUTO=1", f"there is no input 'INPUTO': did you mean 'INPUT0'? The model 'rows' {TAKES}"),
        ("rows 5", f"'5' is not NAME=VALUE: model 'rows' {TAKES}"),
        ("rows INPUT0=1 INPUT0=2", "input 'INPUT0' is given twice"),
        ("rows INPUT0=", f"{ROWS}'' is neither a number nor a list, as JSON writes them"),
        ("rows INPUT0=five", f"{ROWS}'five' is neither a number nor a list, as JSON writes them"),
        ("""rows INPUT0='[1,"a"]'""", f'{ROWS}"a" is of another type'),
        ("rows INPUT0='[1,true]'", f"{ROWS}true is of another type"),
        ("rows INPUT0='[[1],[2,3]]'", f"{ROWS}its rows have different lengths"),
        ("rows INPUT0='[[[1]]]'", f"{ROWS}its shape is [1,1,1]"),
        ("rows INPUT0=@page.png", f"{ROWS}page.png is not an .npy array"),
        ("rows INPUT0=@nowhere", "input 'INPUT0': nowhere cannot be read: No such file or directory"),
        ("plain INPUT0='[1,2]'", "input 'INPUT0' is FP32 of shape [2,3]: its shape is [2]"),
        ("small INPUT0='[1,256]'", "input 'INPUT0' is UINT8 of shape [-1]: 256 is out of its range"),
        ("small INPUT0=1.5", "input 'INPUT0' is UINT8 of shape [-1]: 1.5 is of another type"),
        ("small INPUT0=@x.npy", "input 'INPUT0' is UINT8 of shape [-1]: x.npy has float64"),
        ("text INPUT0='[1]'", "input 'INPUT0' is BYTES of shape [-1,1], of which the first may be left out: 1 is of"),
        ("rows INPUT0=@x.npy --url=localhost:1", "no server answers at http://localhost:1 (["),
        (
            "words INPUT0=@page.png",
            "the model is decoupled, and input 'INPUT0' cannot be streamed over HTTP: its bytes",
        ),
        ("streams INPUT0=1", "the model is decoupled, and input 'INPUT0' cannot be streamed over HTTP: FP16 has no"),
        ("words INPUT0='" + '[["a"],["b"],["c"],["d"],["e"]]' + "'", "[request id: <id_unknown>] inference request "),
        ("rows --url=file:///etc/passwd", "'file:///etc/passwd' is not the address of a server over HTTP"),
    ],
)
def test_errors_are_one_line(server: Serving, files: Path, words: str, error: str) -> None:
    done = ask(server, words, files)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {error}"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>", b"\xff"])
@pytest.mark.parametrize("status", [200, 404])
def test_another_kind_of_server_is_told_as_such(body: bytes, status: int) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        done = ask(url, "rows INPUT0=1")
        other.shutdown()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: what answers at {url} is no inference server")
    assert done.stderr.count("\n") == 1


def test_a_missing_input_is_named(server: Serving, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    two = io_config(extra='input [ { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] } ]')
    more = 'input [ { name: "MORE" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]'
    write_model(repository, "two", config=two + more)
    (tmp_path / "tokens").write_text("a-token-for-everything\n")
    with Serving(repository, f"--auth-token-file={tmp_path / 'tokens'}") as guarded:
        done = ask(guarded, "two INPUT0=1 --token=a-token-for-everything")
        takes = "INPUT0 (FP32 [-1]), LENGTH (INT32 [1]), MORE (INT32 [1], optional)"
        assert done.stderr == f"error: no value for input 'LENGTH': model 'two' takes {takes}\n"
        done = ask(guarded, "two --token=a-token-for-everything")
        assert done.stdout.splitlines()[-1] == "stubserve ask two INPUT0='[1,2,3]' LENGTH='[1]'"
        assert ask(guarded, "two").stderr.startswith("error: This API wants a token")
