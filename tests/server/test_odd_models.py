"""Models that do what a careful author would not: each is answered, and neither the stub nor the instance is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import Answer, Serving, io_config, write_model

# Run the Python text of their input: what it leaves in `result`, or returns, is what `execute` returns.
PREPARED = """
    import asyncio, sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def fine(**more):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([b"fine"], dtype=object))], **more)

    def source(requests):
        return requests[0].inputs()[0].as_numpy()[0].decode()
"""
SCRIPT = (
    PREPARED
    + """
    class TritonPythonModel:
        def execute(self, requests):
            names = dict(globals(), requests=requests)
            exec(source(requests), names)
            return names["result"]
"""
)
COROUTINE = (
    PREPARED
    + """
    class TritonPythonModel:
        async def execute(self, requests):
            names = dict(globals())
            exec("async def main():\\n    " + source(requests), names)
            await names["main"]()
            return [fine()]
"""
)
STRINGS = io_config("STRING", "1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "script", SCRIPT, STRINGS)
    write_model(repository, "coroutine", COROUTINE, STRINGS)
    with Serving(repository) as running:
        yield running


def run(server: Serving, model: str, source: str) -> Answer:
    return server.infer_json(model, [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [source]}])


def test_the_list_of_requests_is_the_models_own(server: Serving) -> None:
    for source in ("requests.clear()", "requests.append(None)"):
        assert run(server, "script", f"{source}; result = [fine()]").status == 200


@pytest.mark.parametrize(
    "given", ["{'a': 2 ** 70}", "{'a': -2 ** 63 - 1}", "{'a': '\\ud800'}", "{'\\ud800': 1}", "{'a': 1e999}"]
)
def test_parameters_that_cannot_be_sent_are_that_responses_error(server: Serving, given: str) -> None:
    pids = server.stub_pids()
    answer = run(server, "script", f"result = [fine(parameters={given})]")
    assert answer.status == 500
    assert answer.error.startswith("Unsupported value type on parameters: ")
    answer = run(server, "script", "result = [fine(parameters={'a': 2 ** 63 - 1, 'b': -2 ** 63, 'c': 0.7})]")
    assert answer.json()["parameters"] == {"a": 2**63 - 1, "b": -(2**63), "c": 0.7}
    assert server.stub_pids() == pids


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise type('Odd', (Exception,), {'__str__': lambda self: sys.exit('text')})", "message: Odd: <MESSAGE UNAV"),
        ("exec('1 / 0', {'__name__': 5})", "message: ZeroDivisionError: division by zero"),
        ("raise GeneratorExit", "message: GeneratorExit: <EMPTY MESSAGE>"),
        ("raise ValueError('x' * (1 << 20))", "message: ValueError: xxxxx"),
    ],
)
def test_what_a_model_may_raise(server: Serving, source: str, text: str) -> None:
    pids = server.stub_pids()
    answer = run(server, "script", source)
    assert answer.status == 500
    assert text in answer.error
    assert run(server, "script", "result = [fine()]").status == 200
    assert server.stub_pids() == pids


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("sys.exit('leaving')", "SystemExit: leaving"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise asyncio.CancelledError", "CancelledError"),
        ("asyncio.get_running_loop().stop()", None),
    ],
)
def test_what_would_end_an_event_loop(server: Serving, source: str, text: str | None) -> None:
    answer = run(server, "coroutine", source)
    assert answer.status == (500 if text else 200)
    assert text is None or text in answer.error
    assert run(server, "coroutine", "pass").status == 200


def test_a_method_that_is_nearly_a_hook_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", "class TritonPythonModel:\n    def excute(self, requests): pass\n")
    with Serving(tmp_path) as serving:
        serving.wait_for(
            f"model 'm': {folder}/1/model.py:2: the server never calls the method `excute`; did you mean `execute`"
        )


def test_a_stub_that_breaks_does_not_wait_for_the_models_threads(server: Serving) -> None:
    source = """
import signal, threading
threading.Thread(target=threading.Event().wait).start()
signal.signal(signal.SIGALRM, lambda *_: sys.exit("too late"))
signal.setitimer(signal.ITIMER_REAL, 0.2)
result = [fine()]
"""
    assert run(server, "script", source).status == 200
    server.wait_for("instance 'script_0' is back")
    assert run(server, "script", "result = [fine()]").status == 200


def test_the_end_of_a_stub_is_that_of_an_interpreter(tmp_path: Path) -> None:
    """What is registered for the end runs; standard output is not there; a thread that never ends does not count."""
    write_model(
        tmp_path / "models",
        "last",
        f"""
        import atexit, sys, threading, weakref
        import triton_python_backend_utils as pb_utils

        def note(text):
            with open({str(tmp_path / "notes")!r}, "a") as file:
                print(text, file=file)

        class Thing:
            pass

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([])]

            def finalize(self):
                note("finalize")
                atexit.register(note, "atexit")
                self.thing = Thing()
                weakref.finalize(self.thing, note, "thing")
                threading.Thread(target=threading.Event().wait).start()
                sys.stdout.close()
                sys.stderr = None

            def __del__(self):
                note("model")
        """,
    )
    with Serving(tmp_path / "models") as server:
        assert server.infer_array("last", np.zeros(1, np.float32)).status == 200
        server.stop()
        assert "was killed" not in server.output
    assert (tmp_path / "notes").read_text().split() == ["finalize", "model", "thing", "atexit"]
