"""Models that call models: sync, async, from threads, onwards, in circles, into death; and whose memory it is."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, eventually, io_config, write_model

# A model that runs the Python text of its input, with `call` at hand, and returns what that leaves in `result`.
SCRIPT = """
    import asyncio, gc, json, os, threading, time
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def request(model, *arrays, **more):
        tensors = [pb_utils.Tensor("INPUT%d" % i, array) for i, array in enumerate(arrays)]
        more.setdefault("requested_output_names", [])
        return pb_utils.InferenceRequest(model_name=model, inputs=tensors, **more)

    def outcome(response):
        if response.has_error():
            return "error: " + response.error().message()
        return [tensor.as_numpy() for tensor in response.output_tensors()]

    def call(model, *arrays, **more):
        return outcome(request(model, *arrays, **more).exec())

    def text(value):
        return np.array([value.encode() if isinstance(value, str) else value], dtype=object)

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            self.kept = []

        def run(self, one):
            source = one.inputs()[0].as_numpy()[0].decode()
            names = dict(globals(), self=self, this=one)
            exec(source, names)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text(json.dumps(names["result"])))])

        def execute(self, requests):
            return [self.run(one) for one in requests]
"""

ASYNC_SCRIPT = (
    SCRIPT
    + """
        async def execute(self, requests):
            answers = []
            for one in requests:
                names = dict(globals(), self=self, this=one)
                exec(one.inputs()[0].as_numpy()[0].decode(), names)
                result = await names["main"]()
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text(json.dumps(result)))]))
            return answers
"""
)

# Adds one in place, so a caller would see it in memory that should be its own.
INCREMENT = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array += 1
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return answers
"""

# Passes its request on to the increment model and returns that one's output, looking at nothing.
RELAY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    pb_utils.InferenceRequest(
                        model_name="increment", requested_output_names=["OUTPUT0"], inputs=one.inputs()
                    ).exec().output_tensors()
                )
                for one in requests
            ]
"""

TWICE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy()),
                    pb_utils.Tensor("OUTPUT1", one.inputs()[0].as_numpy()),
                ])
                for one in requests
            ]
"""

TWO_OUTPUTS = io_config(extra='output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]')

# Waits until it is told, by a file, that it may go on.
SLOW = """
    import os, pathlib, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            folder = pathlib.Path(os.environ["SIGNALS"])
            (folder / "running").write_text(str(os.getpid()))
            while not (folder / "go").exists() and not any(one.is_cancelled() for one in requests):
                time.sleep(0.01)
            if any(one.is_cancelled() for one in requests):
                (folder / "cancelled").write_text("")
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy())])
                for one in requests
            ]
"""

# Answers with parameters too long for a record of the ring, and takes as long ones.
CHATTY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy())],
                    parameters={"seen": len(one.parameters()), "long": "y" * 100_000},
                )
                for one in requests
            ]
"""

# As many responses as the input says, each of them 4 kB of its number; says what became of it in a file.
COUNTER = """
    import os, pathlib
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for one in requests:
                sender, count = one.get_response_sender(), int(one.inputs()[0].as_numpy()[0])
                sent = 0
                for number in range(count):
                    if sender.is_cancelled():
                        break
                    tensor = pb_utils.Tensor("OUTPUT0", np.full(3000, number, np.float32))
                    sender.send(pb_utils.InferenceResponse([tensor]))
                    sent += 1
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                (pathlib.Path(os.environ["SIGNALS"]) / "sent").write_text(str(sent))
"""

# Says which process it is, and then nothing more.
FRAGILE = """
    import os, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensor = pb_utils.Tensor("OUTPUT0", np.array([os.getpid()], np.float32))
            requests[0].get_response_sender().send(pb_utils.InferenceResponse([tensor]))
            time.sleep(600)
"""

DECOUPLED = io_config(extra="model_transaction_policy { decoupled: true }")

NEVER_READY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            raise RuntimeError("must not run")

        def is_ready(self):
            return False
"""

TEXT = io_config("STRING", "1")


def instances(count: int) -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]"


@pytest.fixture(scope="module")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signals")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, signals: Path) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(repository, "increment", INCREMENT)
    write_model(repository, "relay", RELAY)
    write_model(repository, "twice", TWICE, TWO_OUTPUTS)
    write_model(repository, "slow", SLOW)
    # What has never been quick gets no request ahead of time, so all but one wait in the queue.
    write_model(repository, "stuck", SLOW)
    write_model(repository, "chatty", CHATTY)
    write_model(repository, "counter", COUNTER, DECOUPLED)
    write_model(repository, "fragile", FRAGILE, DECOUPLED)
    write_model(repository, "never_ready", NEVER_READY)
    write_model(repository, "script", SCRIPT, TEXT)
    write_model(repository, "other", SCRIPT, TEXT)
    write_model(repository, "pair", SCRIPT, io_config("STRING", "1", extra=instances(2)))
    write_model(repository, "coroutine", ASYNC_SCRIPT, TEXT)
    # Who waits for a model that dies is to hear of it, and not to wait for the next stub.
    with Serving(repository, "--restart-wait-secs=0", environment={"SIGNALS": str(signals)}) as running:
        yield running


def ask(server: Serving, source: str, model: str = "script") -> Answer:
    data = [source]
    return server.infer_json(model, [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": data}])


def run(server: Serving, source: str, model: str = "script") -> Any:
    """What `source` leaves in `result` (or, in the model "coroutine", what its `main` returns)."""
    answer = ask(server, source, model)
    assert answer.status == 200, answer
    return json.loads(answer.json()["outputs"][0]["data"][0])


def test_small_and_large_tensors_come_back(server: Serving) -> None:
    source = """
result = []
for size in (0, 1, 2048, 2049, 1_000_000):
    array = np.arange(size, dtype=np.float32)
    (got,) = call("increment", array)
    result.append(bool((got == array + 1).all()) and got.flags.writeable)
"""
    assert run(server, source) == [True] * 5


def test_a_call_counts_as_a_request(server: Serving) -> None:
    before = server.statistics("echo")["inference_stats"]["success"]["count"]
    run(server, "[call('echo', np.zeros(4, np.float32)) for _ in range(7)]; result = 0")
    assert server.statistics("echo")["inference_stats"]["success"]["count"] == before + 7


def test_neither_side_sees_what_the_other_writes(server: Serving) -> None:
    source = """
array = np.arange(500_000, dtype=np.float32)
mine = array.copy()
(got,) = call("increment", array)
result = [bool((array == mine).all())]
got[:] = -1
(again,) = call("increment", array)
result.append(bool((again == mine + 1).all()))
"""
    assert run(server, source) == [True, True]


def test_outputs_of_one_memory_are_two_arrays(server: Serving) -> None:
    source = """
one, two = call("twice", np.zeros(300_000, np.float32))
one[:] = 1
result = [float(one.sum()), float(two.sum())]
"""
    assert run(server, source) == [300_000, 0]


def test_a_relay_copies_nothing_and_changes_nothing(server: Serving) -> None:
    for size in (10, 1_000_000):
        array = np.arange(size, dtype=np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(binary_output(server.infer_array("relay", array)), array + 1)


def test_a_request_carries_what_it_is_given(server: Serving) -> None:
    source = (
        "inner = 'result = [this.request_id(), this.correlation_id(), this.flags(), this.timeout(), "
        "this.parameters(), sorted(this.requested_output_names())]'\n"
        "(out,) = call('other', text(inner), request_id='inner', correlation_id=7, flags=3, timeout=5_000_000, "
        "parameters={'a': 1, 'b': 'x', 'c': True}, requested_output_names=['OUTPUT0'], "
        "preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU), trace=this.trace())\n"
        "result = json.loads(out[0])"
    )
    got = run(server, source)
    assert got[:4] == ["inner", 7, 3, 5_000_000]
    assert json.loads(got[4]) == {"a": 1, "b": "x", "c": True}
    assert got[5] == ["OUTPUT0"]


def test_parameters_of_clients_can_be_passed_on(server: Serving) -> None:
    """Whatever a client may send, floats too."""
    sent = {"temperature": 0.7, "top_p": 1e-7, "huge": 2**63, "seed": -(2**63), "stop": "é", "stream": False}
    inner = "result = json.loads(this.parameters())"
    source = f"result = call('other', text({inner!r}), parameters=json.loads(this.parameters()))[0][0].decode()"
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [source]}
    answer = server.infer_json("script", [tensor], parameters=sent)
    assert answer.status == 200, answer
    assert json.loads(json.loads(answer.json()["outputs"][0]["data"][0])) == sent


def test_long_parameters_both_ways(server: Serving) -> None:
    source = """
response = request("chatty", np.zeros(1, np.float32), parameters={"long": "x" * 100_000}).exec()
got = json.loads(response.parameters())
result = [got["seen"], len(got["long"])]
"""
    for _ in range(3):
        assert run(server, source) == [100_011, 100_000]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("call('nosuch')",
         "Model nosuch - Error when running inference: Request for unknown model: 'nosuch' is not found"),
        ("call('echo', np.zeros(2, np.float32), model_version=9)",
         "Model echo - Error when running inference: Request for unknown model: 'echo' version 9 is not found"),
        ("call('echo')", "expected 1 inputs but got 0 inputs for model 'echo'"),
        ("call('echo', np.zeros(2))", "data-type is 'FP64', but model 'echo' expects 'FP32'"),
        ("call('never_ready', np.zeros(2, np.float32))", "Model 'never_ready' is not ready."),
        ("call('other', text('raise ValueError(5)'))", "Failed to process the request(s) for model 'other_0', "
         "message: ValueError: 5"),
    ],
)  # fmt: skip
def test_failures_are_answers(server: Serving, source: str, text: str) -> None:
    got = run(server, f"result = {source}")
    assert got.startswith("error: ")
    assert text in got


def test_models_that_are_not_loaded_are_unknown(tmp_path: Path) -> None:
    """Whether they have never been loaded, were unloaded, or failed to load; with or without a version."""
    write_model(tmp_path, "script", SCRIPT, TEXT)
    for name in ("never", "unloaded"):
        write_model(tmp_path, name)
    write_model(tmp_path, "failed", "raise RuntimeError('no')")
    flags = ("--model-control-mode=explicit", "--load-model=script", "--load-model=unloaded", "--load-model=failed")
    with Serving(tmp_path, *flags, "--exit-on-error=false") as server:
        assert server.request("POST", "/v2/repository/models/unloaded/unload", b"{}").status == 200
        for name, reason, of_version in (
            ("never", "'never' is not found", "'never' is not found"),
            ("unloaded", "'unloaded' has no available versions", "'unloaded' version 1 is not at ready state"),
            ("failed", "'failed' has no available versions", "'failed' version 1 is not at ready state"),
        ):
            wrong = f"error: Model {name} - Error when running inference: Request for unknown model: "
            zeros = "np.zeros(2, np.float32)"
            assert run(server, f"result = call('{name}', {zeros})") == wrong + reason
            assert run(server, f"result = call('{name}', {zeros}, model_version=1)") == wrong + of_version


def test_no_room_is_an_answer(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    write_model(tmp_path, "script", SCRIPT, TEXT)
    with Serving(tmp_path, "--shm-limit=16777216") as server:
        source = """
result = [call("echo", np.zeros(8_000_000, np.float32))]
for _ in range(20):
    result.append(float(call("echo", np.ones(500_000, np.float32))[0].sum()))
"""
        first, *rest = run(server, source)
        assert "--shm-limit" in first
        assert rest == [500_000] * 20


# Who may call when


def test_calls_from_threads(server: Serving) -> None:
    source = """
def one(number):
    (got,) = call("increment", np.full(3000, number, np.float32))
    return float(got[-1])
with ThreadPoolExecutor(8) as pool:
    result = list(pool.map(one, range(200)))
"""
    assert run(server, source) == [number + 1.0 for number in range(200)]


def test_calls_from_coroutines(server: Serving) -> None:
    source = """
async def main():
    async def one(number):
        (got,) = outcome(await request("increment", np.full(3000, number, np.float32)).async_exec())
        return float(got[-1])
    first = await asyncio.gather(*(one(number) for number in range(100)))
    # The same beside calls that block threads of the same stub.
    loop = asyncio.get_running_loop()
    mixed = await asyncio.gather(
        *(one(number) for number in range(50)),
        *(loop.run_in_executor(None, lambda: float(call("increment", np.zeros(9, np.float32))[0][0]))
          for _ in range(50)))
    return first + mixed
"""
    expected = [number + 1.0 for number in range(100)] + [number + 1.0 for number in range(50)] + [1.0] * 50
    assert run(server, source, "coroutine") == expected


def test_an_event_loop_of_the_models_own(server: Serving) -> None:
    source = """
async def main():
    answers = await asyncio.gather(*(request("increment", np.zeros(2, np.float32)).async_exec() for _ in range(10)))
    return [float(outcome(answer)[0][0]) for answer in answers]
result = asyncio.run(main())
"""
    assert run(server, source) == [1.0] * 10


def test_async_exec_wants_an_event_loop(server: Serving) -> None:
    answer = ask(server, "request('echo').async_exec()")
    assert "RuntimeError: no running event loop" in answer.error


def test_a_call_that_nobody_awaits_any_more(server: Serving, signals: Path) -> None:
    clear(signals)
    source = """
async def main():
    waiting = asyncio.ensure_future(request("slow", np.zeros(2, np.float32)).async_exec())
    done, pending = await asyncio.wait({waiting}, timeout=0.05)
    waiting.cancel()
    open(os.environ["SIGNALS"] + "/go", "w").close()
    (got,) = outcome(await request("increment", np.zeros(2, np.float32)).async_exec())
    return [len(pending), float(got[0])]
"""
    assert run(server, source, "coroutine") == [1, 1.0]


@pytest.mark.parametrize("left", ["asyncio.wait_for(waiting, 0.05)", "asyncio.sleep(0)"])
def test_an_event_loop_that_is_gone_when_the_answer_comes(server: Serving, signals: Path, left: str) -> None:
    clear(signals)
    source = f"""
async def main():
    waiting = request("slow", np.zeros(2, np.float32)).async_exec()
    try:
        await {left}
    except asyncio.TimeoutError:
        pass
asyncio.run(main())
open(os.environ["SIGNALS"] + "/go", "w").close()
result = [float(call(model, np.zeros(2, np.float32))[0][0]) for model in ("slow", "increment")]
"""
    assert run(server, source) == [0.0, 1.0]


def test_uvloop(server: Serving) -> None:
    source = """
import uvloop
async def main():
    return float(outcome(await request("increment", np.zeros(2, np.float32)).async_exec())[0][0])
loop = uvloop.new_event_loop()
result = [loop.run_until_complete(main())]
loop.close()
result.append(float(call("increment", np.zeros(2, np.float32))[0][0]))
"""
    assert run(server, source) == [1.0, 1.0]


def test_a_signal_handler_that_raises_while_a_call_waits(server: Serving, signals: Path) -> None:
    """The main thread first waits for its turn to read answers, behind another thread, and then reads them."""
    clear(signals)
    source = """
import signal
from stubserve_stub.api import bls
def late(*_):
    raise TimeoutError
def slow():
    return call("slow", np.zeros(2, np.float32))
def limited():
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        slow()
    except TimeoutError:
        return "late"
signal.signal(signal.SIGALRM, late)
with ThreadPoolExecutor(1) as pool:
    reading = pool.submit(slow)
    while not bls._calls._reading:
        time.sleep(0.001)
    result = [limited()]
    open(os.environ["SIGNALS"] + "/go", "w").close()
    reading.result()
    result.append(float(call("increment", np.zeros(2, np.float32))[0][0]))
os.unlink(os.environ["SIGNALS"] + "/go")
result.append(limited())
open(os.environ["SIGNALS"] + "/go", "w").close()
result.append(float(call("increment", np.zeros(2, np.float32))[0][0]))
"""
    assert run(server, source) == ["late", 1.0, "late", 1.0]


@pytest.mark.parametrize("given", ["{'a': 2 ** 70}", "{'a': '\\ud800'}", "{'a': float('nan')}"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_parameters_that_cannot_be_sent(server: Serving, given: str, decoupled: bool) -> None:
    source = f"""
got = request("increment", np.zeros(3000, np.float32), parameters={given}).exec(decoupled={decoupled})
result = [outcome(response) for response in (got if {decoupled} else [got])]
async def main():
    return outcome(await request("increment", np.zeros(2, np.float32), parameters={given}).async_exec())
result.append(asyncio.run(main()))
"""
    prefix = "error: Model increment - Error when running inference: Unsupported value type on parameters"
    assert [text.startswith(prefix) for text in run(server, source)] == [True, True]


@pytest.mark.parametrize("method", ["initialize", "finalize"])
def test_not_in_initialize_and_not_in_finalize(tmp_path: Path, method: str) -> None:
    argument = ", args" if method == "initialize" else ""
    code = f"""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def {method}(self{argument}):
                pb_utils.InferenceRequest(model_name="echo", inputs=[], requested_output_names=[]).exec()

            def execute(self, requests):
                pass
    """
    write_model(tmp_path, "early", code)
    server = Serving(tmp_path)
    server.start()
    server.wait_for(r"Started HTTPService" if method == "finalize" else "failed to load all models")
    server.stop()
    assert "BLS is only supported during the 'execute' function." in server.output


# Other models


def test_asking_for_the_readiness_of_others(server: Serving) -> None:
    source = """
result = [pb_utils.is_model_ready(*asked) for asked in
          (("echo",), ("echo", "1"), ("echo", "7"), ("nosuch",), ("never_ready",))]
try:
    pb_utils.is_model_ready("echo", "x")
except pb_utils.TritonModelException as error:
    result.append(str(error))
"""
    *ready, error = run(server, source)
    assert ready == [True, True, False, False, False]
    assert error.startswith(
        "Failed to check model readiness: Failed to process the request for model 'script_0', message: "
        "failed to get model version from specified version string 'x'"
    )


def test_asking_in_initialize(tmp_path: Path) -> None:
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                print("READY", pb_utils.is_model_ready("nosuch"))
    """
    write_model(tmp_path, "early", code)
    with Serving(tmp_path) as server:
        server.wait_for("READY False")


@pytest.mark.parametrize("what", ["load", "unload"])
def test_loading_is_refused_as_over_http(server: Serving, what: str) -> None:
    answer = ask(server, f"pb_utils.{what}_model('echo')")
    assert (
        f"Failed to {what} model: Failed to process the request for model 'script_0', message: explicit model load"
        in (answer.error)
    )


# Iterators


def test_an_iterator_over_one_response(server: Serving) -> None:
    source = """
answers = request("increment", np.zeros(2, np.float32)).exec(decoupled=True)
first = [float(outcome(answer)[0][0]) for answer in answers]
second = [float(outcome(answer)[0][0]) for answer in answers]
try:
    next(answers)
except StopIteration:
    first.append("end")
answers.cancel()
result = [first, second]
"""
    assert run(server, source) == [[1.0, "end"], [1.0]]


def test_an_iterator_of_a_coroutine(server: Serving) -> None:
    source = """
async def main():
    answers = await request("increment", np.zeros(2, np.float32)).async_exec(decoupled=True)
    return [float(outcome(answer)[0][0]) for answer in answers]
"""
    assert run(server, source, "coroutine") == [1.0]


def test_an_iterator_over_an_error(server: Serving) -> None:
    got = run(server, "result = [outcome(one) for one in request('nosuch').exec(decoupled=True)]")
    assert len(got) == 1
    assert "Error when running inference: Request for unknown model: 'nosuch' is not found" in got[0]


def test_an_iterator_over_many_responses(server: Serving) -> None:
    source = """
answers = request("counter", np.array([300], np.float32)).exec(decoupled=True)
taken = []
for answer in answers:
    taken.append([float(array[-1]) for array in outcome(answer)])
    if len(taken) == 100:
        break
for answer in answers:
    taken.append([float(array[-1]) for array in outcome(answer)])
again = len(list(answers))
result = [taken, again]
"""
    taken, again = run(server, source)
    # The last one is empty: the model has said separately that it is done.
    assert taken == [[float(number)] for number in range(300)] + [[]]
    assert again == 301


def test_no_response_is_one_empty_answer(server: Serving) -> None:
    source = """
answers = list(request("counter", np.array([0], np.float32)).exec(decoupled=True))
result = [[len(answer.output_tensors()), answer.has_error(), answer.parameters()] for answer in answers]
"""
    assert run(server, source) == [[0, False, ""]]


def test_a_decoupled_model_wants_an_iterator(server: Serving) -> None:
    got = run(server, "result = call('counter', np.array([1], np.float32))")
    assert "is using the decoupled" in got


def test_cancelling_an_iterator(server: Serving, signals: Path) -> None:
    clear(signals)
    source = """
answers = request("counter", np.array([1_000_000], np.float32)).exec(decoupled=True)
next(answers)
answers.cancel()
result = len(list(answers)) < 1_000_000
answers.cancel()
"""
    assert run(server, source)
    assert 0 < process_in(signals / "sent") < 1_000_000


def test_a_slow_iterator_holds_the_model_back(server: Serving, signals: Path) -> None:
    clear(signals)
    source = """
self.answers = request("counter", np.array([20_000], np.float32)).exec(decoupled=True)
next(self.answers)
result = 0
"""
    run(server, source)
    assert run(server, "time.sleep(0.3); result = os.path.exists(os.environ['SIGNALS'] + '/sent')") is False
    assert run(server, "result = sum(1 for _ in self.answers)") == 20_000
    assert process_in(signals / "sent") == 20_000


def test_an_iterator_that_is_dropped_gives_up_the_rest(server: Serving, signals: Path) -> None:
    clear(signals)
    run(server, "request('counter', np.array([5000], np.float32)).exec(decoupled=True); result = 0")
    assert process_in(signals / "sent") == 5000
    assert run(server, "result = float(call('increment', np.zeros(3000, np.float32))[0][0])") == 1


# Circles


def nested(*models: str) -> str:
    """A script that calls the first model with a script that calls the second, and so on; the innermost says so."""
    source = "result = 'bottom'"
    for model in reversed(models):
        inner = source
        source = (
            f"got = call({model!r}, text({inner!r})); result = got if isinstance(got, str) else json.loads(got[0][0])"
        )
    return source


def test_a_model_that_calls_itself(server: Serving) -> None:
    got = run(server, nested("script"))
    assert got.startswith("error: Model script - Error when running inference:")
    assert "script_0 -> script_0" in got
    assert run(server, "result = 1") == 1


def test_models_that_call_each_other(server: Serving) -> None:
    got = run(server, nested("other", "script"))
    assert "other_0 -> script_0 -> other_0" in got


def test_recursion_goes_as_deep_as_there_are_instances(server: Serving) -> None:
    assert run(server, nested("pair"), "pair") == "bottom"
    assert "can never run" in run(server, nested("pair", "pair"), "pair")
    assert run(server, nested("other", "pair", "pair")) == "bottom"


def test_two_chains_that_wait_for_each_other(server: Serving) -> None:
    # Each takes one of the two instances and then wants the other: one of them must fail, or both wait for ever.
    source = """
import pathlib
meet = pathlib.Path(os.environ["SIGNALS"])
(meet / self.name).write_text("")
while not (meet / "pair_0_0").exists() or not (meet / "pair_0_1").exists():
    time.sleep(0.005)
""" + nested("pair")
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(run(server, source, "pair"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(results) == 2
    assert "bottom" in results
    assert all(result == "bottom" or "can never run" in result for result in results)


def test_a_circle_through_a_coroutine_and_through_a_thread(server: Serving) -> None:
    source = """
async def main():
    return outcome(await request("coroutine", text("async def main(): return 1")).async_exec())
"""
    assert "coroutine_0 -> coroutine_0" in run(server, source, "coroutine")
    source = """
with ThreadPoolExecutor(1) as pool:
    result = pool.submit(call, "script", text("result = 1")).result()
"""
    assert "script_0 -> script_0" in run(server, source)


def test_a_thread_may_wait_for_its_own_model(server: Serving) -> None:
    source = """
def later():
    self.kept.append(json.loads(call("script", text("result = 'served'"))[0][0]))
self.kept.clear()
threading.Thread(target=later).start()
result = 0
"""
    assert run(server, source) == 0
    assert eventually(lambda: run(server, "result = self.kept")) == ["served"]


# Deaths


def clear(signals: Path) -> None:
    for file in signals.iterdir():
        file.unlink()


def process_in(file: Path) -> int:
    """The process that has written its number into the file, once it has."""
    return int(eventually(lambda: file.exists() and file.read_text()))


def wait_until_back(server: Serving, model: str) -> None:
    eventually(lambda: server.get(f"/v2/models/{model}/ready").status == 200)


def test_the_model_that_was_called_dies(server: Serving, signals: Path) -> None:
    clear(signals)
    results: list[Any] = []
    source = "result = call('slow', np.zeros(400_000, np.float32))"
    caller = threading.Thread(target=lambda: results.append(run(server, source)))
    caller.start()
    os.kill(process_in(signals / "running"), signal.SIGKILL)
    caller.join(PATIENCE_S)
    assert "Stub process 'slow_0' is not healthy" in results[0]
    wait_until_back(server, "slow")
    assert run(server, "result = float(call('echo', np.ones(300_000, np.float32))[0].sum())") == 300_000


def test_the_model_that_calls_dies(server: Serving, signals: Path) -> None:
    clear(signals)
    results: list[Answer] = []
    source = """
with open(os.environ["SIGNALS"] + "/caller", "w") as file:
    file.write(str(os.getpid()))
call("slow", np.zeros(400_000, np.float32))
"""
    caller = threading.Thread(target=lambda: results.append(ask(server, source)))
    caller.start()
    process_in(signals / "running")
    os.kill(process_in(signals / "caller"), signal.SIGKILL)
    caller.join(PATIENCE_S)
    assert results[0].status == 500
    assert "Stub process 'script_0' is not healthy" in results[0].error
    # Its call was cancelled, and what it called sees that.
    eventually((signals / "cancelled").exists)
    wait_until_back(server, "script")
    assert run(server, "result = 1") == 1


def test_everybody_who_waits_for_a_model_that_dies_hears_of_it(server: Serving, signals: Path) -> None:
    # The main thread, threads and coroutines; one of their calls is being executed, the others are in the queue.
    clear(signals)
    results: list[Any] = []
    source = """
async def main():
    answers = await asyncio.gather(*(request("stuck", np.zeros(9, np.float32)).async_exec() for _ in range(3)))
    return [outcome(answer) for answer in answers]
with ThreadPoolExecutor(4) as pool:
    waiting = [pool.submit(call, "stuck", np.zeros(9, np.float32)) for _ in range(3)]
    waiting.append(pool.submit(asyncio.run, main()))
    first = call("stuck", np.zeros(9, np.float32))
    *threads, coroutines = [one.result() for one in waiting]
result = [first, *threads, *coroutines]
"""
    caller = threading.Thread(target=lambda: results.append(run(server, source)))
    caller.start()
    process = process_in(signals / "running")
    queued = 'nv_inference_pending_request_count{model="stuck",version="1"} 6'
    eventually(lambda: queued in server.metrics().body.decode())
    os.kill(process, signal.SIGKILL)
    caller.join(PATIENCE_S)
    assert len(results[0]) == 7
    assert all("Stub process 'stuck_0' is not healthy" in result for result in results[0])
    wait_until_back(server, "stuck")


def test_a_decoupled_model_dies_between_two_responses(server: Serving) -> None:
    source = """
answers = request("fragile", np.zeros(1, np.float32)).exec(decoupled=True)
os.kill(int(outcome(next(answers))[0][0]), 9)
rest = [outcome(answer) for answer in answers]
result = [rest, len(list(answers))]
"""
    rest, again = run(server, source)
    assert len(rest) == 1
    assert "Stub process 'fragile_0' is not healthy" in rest[0]
    assert again == 2
    wait_until_back(server, "fragile")


def test_a_model_is_unloaded_while_it_is_called(tmp_path: Path) -> None:
    repository, signals = tmp_path / "models", tmp_path / "signals"
    signals.mkdir()
    write_model(repository, "slow", SLOW)
    write_model(repository, "script", SCRIPT, TEXT)
    flags = ("--model-control-mode=explicit", "--load-model=slow", "--load-model=script")
    with Serving(repository, *flags, environment={"SIGNALS": str(signals)}) as server:
        results: list[Any] = []
        source = """
(under_way,) = call("slow", np.ones(9, np.float32))
result = [float(under_way.sum()), call("slow", np.ones(9, np.float32))]
"""
        caller = threading.Thread(target=lambda: results.append(run(server, source)))
        caller.start()
        process_in(signals / "running")
        assert server.request("POST", "/v2/repository/models/slow/unload", b"{}").status == 200
        (signals / "go").touch()
        caller.join(PATIENCE_S)
        assert results[0][0] == 9
        assert (
            "Error when running inference: Request for unknown model: 'slow' has no available versions" in results[0][1]
        )


# Memory


def test_thousands_of_calls_leave_memory_as_it_was(server: Serving) -> None:
    processes = [psutil.Process(server.process.pid), *map(psutil.Process, server.stub_pids())]
    source = """
for size, count in ((10, 1500), (3000, 500), (100_000, 100)):
    array = np.zeros(size, np.float32)
    for _ in range(count):
        (got,) = call("increment", array)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: call("increment", np.zeros(3000, np.float32)), range(200)))
for _ in range(10):
    assert sum(1 for _ in request("counter", np.array([100], np.float32)).exec(decoupled=True)) == 101
result = 0
"""
    run(server, source)
    before = [process.memory_info().rss for process in processes]
    for _ in range(3):
        run(server, source)
    for process, rss in zip(processes, before, strict=True):
        assert process.memory_info().rss < rss + (4 << 20), process


def test_what_a_model_keeps_of_an_answer_stays_as_it_is(server: Serving) -> None:
    source = """
kept = [call("increment", np.full(200_000, number, np.float32))[0] for number in range(20)]
for _ in range(20):
    call("increment", np.full(200_000, -5, np.float32))
result = [float(array.min()) for array in kept] + [float(array.max()) for array in kept]
"""
    assert run(server, source) == [number + 1.0 for number in range(20)] * 2


def test_calls_that_die_with_their_stub_leave_no_memory(tmp_path: Path) -> None:
    """The server is stopped meanwhile, so that it learns of a call and of the caller's death in one turn."""
    write_model(tmp_path, "script", SCRIPT, TEXT)
    write_model(tmp_path, "never_ready", NEVER_READY)
    source = """
import gc, select, signal
doorbell = next(one for one in gc.get_objects() if type(one).__name__ == "Channel")._writer._doorbell
large = np.zeros(300_000, np.float32)
call("never_ready", large)  # what it took is the stub's to use again, without asking the server
os.kill(os.getppid(), signal.SIGSTOP)
while open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.001)
threading.Thread(target=call, args=("never_ready", large)).start()
select.select([doorbell], [], [])
os._exit(3)
"""
    with Serving(tmp_path, "--shm-limit=32M") as server:
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(ask(server, source)))
        asking.start()
        parent = psutil.Process(server.process.pid)
        eventually(lambda: any(child.status() == psutil.STATUS_ZOMBIE for child in parent.children()))
        parent.resume()
        asking.join(PATIENCE_S)
        assert "it exited with code 3" in answers[0].error
        wait_until_back(server, "script")
        too_large = server.infer_array("never_ready", np.zeros(10_000_000, np.float32))
        assert too_large.status == 503
        assert too_large.error.endswith("outputs of stubs: none")
