"""Models of every kind, loaded and executed in this process."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from stubserve import testing
from stubserve.errors import ServeError
from tests.real_server import PATIENCE_S, io_config, write_model

BATCHING = io_config(max_batch_size=8)
DECOUPLED = io_config("INT32", "1", extra="model_transaction_policy { decoupled: true }")

DOUBLE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            self.sizes = [request.inputs()[0].shape()[0] for request in requests]
            batch = pb_utils.stack(requests, "INPUT0")
            return pb_utils.unstack(requests, {"OUTPUT0": 2 * batch})
"""


def function(body: str) -> str:
    """A model whose `execute` makes each response with the function `answer(request)`."""
    return f"""
import json
import numpy as np
import triton_python_backend_utils as pb_utils

def output(array, name="OUTPUT0"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])

def answer(request):
    array = request.inputs()[0].as_numpy()
    {body}

class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]
"""


def load(repository: Path, source: str, config: str | None = None, **options: Any) -> testing.LoadedModel:
    return testing.load(write_model(repository, "m", source, config), **options)


# Requests


def test_arrays_and_lists(repository: Path) -> None:
    with load(repository, DOUBLE, BATCHING) as model:
        assert model.infer(INPUT0=np.array([[1, 2]], np.float32))["OUTPUT0"].tolist() == [[2, 4]]
        assert model.infer({"INPUT0": [[3]]})["OUTPUT0"].dtype == np.float32


def test_several_requests_are_one_batch(repository: Path) -> None:
    with load(repository, DOUBLE, BATCHING) as model:
        answers = model.execute([{"INPUT0": [[1], [2]]}, testing.Request({"INPUT0": [[3]]})])
        assert [answer["OUTPUT0"].tolist() for answer in answers] == [[[2], [4]], [[6]]]
        assert model.instance.sizes == [2, 1]
        with pytest.raises(ValueError, match="a server makes no batch of 9 for model 'm': its max_batch_size is 8"):
            model.execute([{"INPUT0": [[1]] * 4}, {"INPUT0": [[1]] * 5}])


def test_a_model_sees_all_of_a_request(repository: Path) -> None:
    source = function("""return output(np.array([json.dumps([
        request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.parameters(),
        sorted(request.requested_output_names()), request.is_cancelled(), array.tolist()[0].decode(),
    ])], np.object_))""")
    with load(repository, source, io_config("STRING")) as model:
        (answer,) = model.execute(
            [testing.Request({"INPUT0": ["é"]}, ["OUTPUT0"], "id", "seq", 3, 50, {"a": 1.5}, cancelled=True)]
        )
    (text,) = answer["OUTPUT0"]
    assert json.loads(text) == ["id", "seq", 3, 50, '{"a":1.5}', ["OUTPUT0"], True, "é"]


def test_tensors_that_numpy_does_not_have(repository: Path) -> None:
    source = function(
        "return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack('OUTPUT0', request.inputs()[0])])"
    )
    source = source.replace("request.inputs()[0].as_numpy()", "None")
    with load(repository, source, io_config("BF16")) as model:
        from stubserve_stub.api.tensors import Tensor

        (answer,) = model.execute([{"INPUT0": Tensor._received("", 14, [2], b"\x80\x3f\0\0", None)}])
    (tensor,) = answer.response.output_tensors()
    assert (tensor.triton_dtype(), tensor.shape()) == (14, [2])


def test_what_a_server_would_refuse(repository: Path) -> None:
    with load(repository, DOUBLE, BATCHING) as model:
        with pytest.raises(ServeError, match="inference input 'INPUT0' data-type is 'FP64', but model 'm' expects"):
            model.infer(INPUT0=np.zeros((1, 1)))
        with pytest.raises(ServeError, match="missing required input"):
            model.infer()
        with pytest.raises(ServeError, match="unexpected inference output 'X' for model 'm'"):
            model.execute([testing.Request({"INPUT0": [[1]]}, outputs=["X"])])


# Responses


def test_response_parameters(repository: Path) -> None:
    source = function("return pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', array)], parameters={'n': 1})")
    with load(repository, source) as model:
        (answer,) = model.execute([{"INPUT0": [1]}])
    assert answer.parameters == {"n": 1}


def test_error_responses(repository: Path) -> None:
    source = function(
        "return pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND))"
    )
    with load(repository, source) as model:
        (answer,) = model.execute([{"INPUT0": [1]}])
        assert answer.error is not None
        assert answer.error.message() == "no"
        with pytest.raises(testing.ModelError, match=r"^no$") as raised:
            model.infer(INPUT0=[1])
    assert raised.value.code == pb_utils.TritonError.NOT_FOUND


@pytest.mark.parametrize(
    ("body", "config", "text"),
    [
        (
            "return output(array, 'OTHER')",
            None,
            "model 'm', request 0: the response has an output 'OTHER', but the configuration only has ['OUTPUT0']. "
            "A server drops it.",
        ),
        (
            "return output(array.astype('f8'))",
            None,
            "model 'm', request 0: output 'OUTPUT0' is of type FP64, its configuration says FP32",
        ),
        (
            "return output(array[None])",
            None,
            "model 'm', request 0: output 'OUTPUT0' has shape [1, 1], expected [-1]",
        ),
        (
            "return output(array.repeat(2, 0))",
            BATCHING,
            "model 'm', request 0: output 'OUTPUT0' has shape [2, 1], expected [1, -1]",
        ),
        (
            "return pb_utils.InferenceResponse([])",
            None,
            "model 'm', request 0: the response has no output 'OUTPUT0', only []",
        ),
    ],
)
def test_responses_must_fit_the_configuration(repository: Path, body: str, config: str | None, text: str) -> None:
    value = [[1]] if config else [1]
    with load(repository, function(body), config) as model, pytest.raises(AssertionError) as raised:
        model.infer(INPUT0=value)
    assert str(raised.value) == text
    with load(repository, function(body), config, check=False) as model:
        model.infer(INPUT0=value)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("()", "Expected a list in the execute return"),
        ("[]", "Number of InferenceResponse objects do not match"),
        ("[5]", "Expected an 'InferenceResponse' object"),
    ],
)
def test_the_contract_of_execute(repository: Path, result: str, text: str) -> None:
    source = f"""
        class TritonPythonModel:
            def execute(self, requests):
                return {result}
    """
    with load(repository, source) as model, pytest.raises(AssertionError, match=text):
        model.infer(INPUT0=[1])


def test_exceptions_arrive_as_they_are(repository: Path) -> None:
    with load(repository, function("raise KeyError('k')")) as model, pytest.raises(KeyError) as raised:
        model.infer(INPUT0=[1])
    assert raised.traceback[-1].name == "answer"
    assert str(raised.traceback[-1].path).endswith("m/1/model.py")


# Coroutines and senders

SENDING = """
    import asyncio, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def send(request, count):
        sender = request.get_response_sender()
        for number in range(count):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))]))
        sender.send(flags=FINAL)

    class TritonPythonModel:
"""


def counts(answer: testing.Answer) -> list[int]:
    return [int(response.output_tensors()[0].as_numpy()[0]) for response in answer.responses]


@pytest.mark.parametrize(
    "execute",
    [
        """
        def execute(self, requests):
            for request in requests:
                send(request, int(request.inputs()[0].as_numpy()[0]))
        """,
        """
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=send, args=(request, int(request.inputs()[0].as_numpy()[0]))).start()
        """,
        """
        async def execute(self, requests):
            await asyncio.sleep(0)
            for request in requests:
                send(request, int(request.inputs()[0].as_numpy()[0]))
        """,
    ],
)
def test_decoupled(repository: Path, execute: str) -> None:
    with load(repository, SENDING + execute, DECOUPLED) as model:
        some, none, many = model.execute([{"INPUT0": [2]}, {"INPUT0": [0]}, {"INPUT0": [1000]}])
        assert counts(some) == [0, 1]
        assert counts(none) == []
        assert counts(many) == list(range(1000))
        with pytest.raises(AssertionError, match="the model gave 2 responses to this request, not one"):
            model.infer(INPUT0=[2])


def test_coroutine(repository: Path) -> None:
    source = (
        SENDING
        + """
        async def execute(self, requests):
            await asyncio.sleep(0)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([5], np.int32))])]
    """
    )
    with load(repository, source, io_config("INT32")) as model:
        assert model.infer(INPUT0=[1])["OUTPUT0"].tolist() == [5]


def test_coroutine_that_fails(repository: Path) -> None:
    source = (
        SENDING
        + """
        async def execute(self, requests):
            await asyncio.sleep(0)
            raise LookupError("here")
    """
    )
    for config in (DECOUPLED, io_config("INT32")):
        with load(repository, source, config) as model, pytest.raises(LookupError, match="here"):
            model.infer(INPUT0=[1])


def test_coroutine_that_is_cancelled(repository: Path) -> None:
    source = (
        SENDING
        + """
        async def execute(self, requests):
            self.kept = [request.get_response_sender() for request in requests]
            raise asyncio.CancelledError
    """
    )
    with load(repository, source, DECOUPLED) as model, pytest.raises(concurrent.futures.CancelledError):
        model.infer(INPUT0=[1])


def test_a_sender_that_is_let_go_of(repository: Path) -> None:
    source = (
        SENDING
        + """
        def execute(self, requests):
            return None
    """
    )
    with load(repository, source, DECOUPLED) as model:
        (answer,) = model.execute([{"INPUT0": [1]}])
    assert answer.error is not None
    assert "let go of the response sender" in answer.error.message()


def test_a_sender_that_is_silent(repository: Path) -> None:
    source = (
        SENDING
        + """
        def execute(self, requests):
            self.kept = [request.get_response_sender() for request in requests]
    """
    )
    with (
        load(repository, source, DECOUPLED) as model,
        pytest.raises(AssertionError, match=r"'m_0' sent no TRITONSERVER_RESPONSE_COMPLETE_FINAL for requests \[0\]"),
    ):
        model.execute([{"INPUT0": [1]}], timeout=0.01)


def test_a_decoupled_model_returns_nothing(repository: Path) -> None:
    source = (
        SENDING
        + """
        def execute(self, requests):
            return []
    """
    )
    text = "'m_0' is using the decoupled mode and the execute function must return None"
    with load(repository, source, DECOUPLED) as model, pytest.raises(AssertionError, match=text):
        model.infer(INPUT0=[1])


def test_rescheduling(repository: Path) -> None:
    source = (
        SENDING
        + """
        def initialize(self, args):
            self.batches = []

        def execute(self, requests):
            self.batches.append([request.request_id() for request in requests])
            responses = []
            for request in requests:
                if request.request_id() == "twice" and len(self.batches) == 1:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    responses.append(None)
                else:
                    value = np.array([len(self.batches)], np.int32)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]))
            return responses
    """
    )
    with load(repository, source, io_config("INT32")) as model:
        requests = [testing.Request({"INPUT0": [1]}, id=name) for name in ("twice", "once")]
        assert [answer["OUTPUT0"][0] for answer in model.execute(requests)] == [2, 1]
        assert model.instance.batches == [["twice", "once"], ["twice"]]


def test_implicit_states(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By correlation id, from START to END; a model that leaves one out is told so."""
    body = """state = request.inputs()[1].as_numpy()
    if array[0] < 0:
        return output(array)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", state), pb_utils.Tensor("NEW", state + array)])"""
    state = """sequence_batching { state { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ]
        initial_state { name: "first" data_type: TYPE_INT32 dims: [ 1 ] data_file: "first" } } }"""
    folder = write_model(repository, "m", function(body), io_config("INT32", "1", extra=state))
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "first").write_bytes(np.int32(100).tobytes())
    start, end = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    with testing.load(folder) as model:
        for flags, seen in ((start, 100), (0, 101), (start, 100), (end, 101)):
            both = [testing.Request({"INPUT0": [1]}, correlation_id=id, flags=flags) for id in (7, "seven")]
            assert [answer["OUTPUT0"][0] for answer in model.execute(both)] == [seen, seen]
        (answer,) = model.execute([testing.Request({"INPUT0": [-1]}, correlation_id=7, flags=start)])
        assert answer.error is None
        assert "has not answered output 'NEW', the new state of 'OLD'" in caplog.text


# The life of a model


def test_initialize_and_finalize(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
                self.folder = pb_utils.get_model_dir()
                pb_utils.Logger.log_warn("initialized")
                pb_utils.Logger.log_verbose("in detail")

            def is_ready(self):
                return False

            def finalize(self):
                self.args = None
    """
    caplog.set_level(logging.DEBUG, "stubserve")
    with load(repository, source, BATCHING) as model:
        instance = model.instance
        assert instance.args == {
            "model_config": json.dumps(model.config, separators=(",", ":")),
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0",
            "model_instance_device_id": "0",
            "model_repository": str(repository / "m"),
            "model_version": "1",
            "model_name": "m",
        }
        assert instance.folder == str(repository / "m" / "1")
        assert model.config["max_batch_size"] == 8
        assert model.is_ready() is False
    assert instance.args is None
    assert [record.message for record in caplog.records] == ["initialized", "in detail"]
    assert caplog.records[0].pathname.endswith("m/1/model.py")
    with pytest.raises(AssertionError, match="model 'm' has been closed"):
        model.infer(INPUT0=[[1]])


def test_configuration_is_completed(repository: Path) -> None:
    source = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(4)
                config.add_input({"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [2]})
                config.add_output({"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [2]})
                return config
    """
    folder = write_model(repository, "m", source)
    (folder / "config.pbtxt").unlink()
    with testing.load(folder) as model:
        assert json.loads(model.arguments["model_config"])["max_batch_size"] == 4
        with pytest.raises(ServeError, match=r"Expected \[-1,2\], got \[1,3\]"):
            model.infer(INPUT0=[[1, 2, 3]])


def test_versions_and_kinds(repository: Path) -> None:
    source = """
        class TritonPythonModel:
            def initialize(self, args):
                self.got = args["model_version"], args["model_instance_kind"]
    """
    config = io_config(extra="instance_group [ { kind: KIND_GPU } ]")
    write_model(repository, "m", source, config, version=3)
    folder = write_model(repository, "m", source, config)
    with testing.load(folder, kind="CPU") as model:
        assert model.instance.got == ("3", "CPU")
    with testing.load(folder, version=1, kind="MODEL") as model:
        assert model.instance.got == ("1", "MODEL")


def test_models_that_cannot_be_loaded(repository: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no model's folder .*nowhere"):
        testing.load(repository / "nowhere")
    with pytest.raises(ZeroDivisionError):
        load(repository, "1 / 0")
    with pytest.raises(ServeError, match="must be non-negative"):
        load(repository, DOUBLE, io_config(max_batch_size=-1))
    source = """
        class TritonPythonModel:
            def initialize(self, args):
                raise OSError("no weights")
    """
    with pytest.raises(OSError, match="no weights"):
        load(repository, source)


def test_models_do_not_see_each_others_modules(repository: Path) -> None:
    source = """
        import helper
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                from . import late
                assert pb_utils.get_model_dir().split("/")[-2] == helper.NAME == late.NAME
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                        for request in requests]
    """
    folders = [write_model(repository, name, source) for name in ("a", "b")]
    for folder in folders:
        for helper in ("helper", "late"):
            (folder / "1" / f"{helper}.py").write_text(f"NAME = '{folder.name}'\n")
    path = list(sys.path)
    with testing.load(folders[0]) as a, testing.load(folders[1]) as b:
        for model in (a, b, a):
            assert model.infer(INPUT0=[1])["OUTPUT0"].tolist() == [1]
    assert sys.path == path
    assert [name for name in sys.modules if name in ("helper", "1", "1.model", "1.late")] == []


# Calls to other models

CALLING = """
    import asyncio, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def ask(request, outputs=()):
        return pb_utils.InferenceRequest(
            model_name="other", requested_output_names=list(outputs), inputs=request.inputs(), parameters={"p": 1})

    class TritonPythonModel:
"""
EXEC = (
    CALLING
    + """
        def execute(self, requests):
            return [ask(request).exec() for request in requests]
"""
)
ASYNC_EXEC = (
    CALLING
    + """
        async def execute(self, requests):
            return list(await asyncio.gather(*(ask(request).async_exec() for request in requests)))
"""
)
ITERATE = (
    CALLING
    + """
        def execute(self, requests):
            (request,) = requests
            values = [tensor.as_numpy()[0] for response in ask(request).exec(decoupled=True)
                      for tensor in response.output_tensors()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(values, np.float32))])]
"""
)
ASYNC_ITERATE = ITERATE.replace("def execute", "async def execute").replace(
    "ask(request).exec", "await ask(request).async_exec"
)


@pytest.mark.parametrize("source", [EXEC, ASYNC_EXEC])
@pytest.mark.parametrize("size", [3, 5000])
def test_calls_to_functions(repository: Path, source: str, size: int) -> None:
    asked: list[pb_utils.InferenceRequest] = []

    def other(request: pb_utils.InferenceRequest) -> dict[str, Any]:
        asked.append(request)
        return {"OUTPUT0": request.inputs()[0].as_numpy() + 1}

    with load(repository, source, bls={"other": other}) as model:
        assert model.infer(INPUT0=[1] * size)["OUTPUT0"].tolist() == [2] * size
    (request,) = asked
    assert request.parameters() == '{"p": 1}'


@pytest.mark.parametrize("source", [ITERATE, ASYNC_ITERATE])
def test_calls_to_decoupled_functions(repository: Path, source: str) -> None:
    def other(request: pb_utils.InferenceRequest) -> Any:
        for number in range(100):
            yield {"OUTPUT0": np.array([number], np.float32)}

    with load(repository, source, bls={"other": other}) as model:
        assert model.infer(INPUT0=[1])["OUTPUT0"].tolist() == list(range(100))


def test_a_call_that_is_cancelled(repository: Path) -> None:
    def other(request: pb_utils.InferenceRequest) -> Any:
        while True:
            yield {"OUTPUT0": np.array([1], np.float32)}

    source = (
        CALLING
        + """
        def execute(self, requests):
            answers = ask(requests[0]).exec(decoupled=True)
            first = next(answers)
            answers.cancel()
            assert [answer.output_tensors() for answer in answers] == [[]]
            return [pb_utils.InferenceResponse(first.output_tensors())]
    """
    )
    with load(repository, source, bls={"other": other}) as model:
        assert model.infer(INPUT0=[1])["OUTPUT0"].tolist() == [1]


def test_calls_that_fail(repository: Path) -> None:
    with (
        load(
            repository,
            CALLING
            + """
        def execute(self, requests):
            return [pb_utils.InferenceResponse(error=ask(request).exec().error()) for request in requests]
    """,
        ) as model,
        pytest.raises(testing.ModelError, match=r"Model 'other' is not ready.*bls=\{'other': function\}"),
    ):
        model.infer(INPUT0=[1])

    def other(request: pb_utils.InferenceRequest) -> Any:
        raise AssertionError("in the test's own function")

    text = "in the test's own function"
    with load(repository, EXEC, bls={"other": other}) as model, pytest.raises(AssertionError, match=text):
        model.infer(INPUT0=[1])


def test_calls_only_in_execute(repository: Path) -> None:
    source = (
        CALLING
        + """
        def initialize(self, args):
            try:
                pb_utils.InferenceRequest(model_name="other", requested_output_names=[], inputs=[]).exec()
            except pb_utils.TritonModelException as error:
                self.refused = str(error)
    """
    )
    with load(repository, source) as model:
        assert model.instance.refused == "BLS is only supported during the 'execute' function."


def test_calls_to_a_loaded_model(repository: Path) -> None:
    callee = write_model(repository, "other", function("return output(array * 3)"))
    with testing.load(callee) as other, load(repository, EXEC, bls={"other": other}) as model:
        assert model.infer(INPUT0=[2])["OUTPUT0"].tolist() == [6]
    streaming = write_model(
        repository,
        "other",
        SENDING
        + """
        def execute(self, requests):
            for request in requests:
                send(request, 3)
    """,
        DECOUPLED.replace("INT32", "FP32"),
    )
    source = (streaming / "1" / "model.py").read_text()
    (streaming / "1" / "model.py").write_text(source.replace("int32", "float32"))
    with testing.load(streaming) as other, load(repository, ITERATE, bls={"other": other}) as model:
        assert model.infer(INPUT0=[2])["OUTPUT0"].tolist() == [0, 1, 2]


def test_no_thread_is_left(repository: Path) -> None:
    before = set(threading.enumerate())
    with load(
        repository, ASYNC_EXEC, bls={"other": lambda request: {"OUTPUT0": request.inputs()[0].as_numpy()}}
    ) as model:
        model.infer(INPUT0=[1])
        started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(PATIENCE_S)
    assert set(threading.enumerate()) == before


METRICS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("requests_total", "all of them", pb_utils.MetricFamily.COUNTER)
            self.metric = self.family.Metric(labels={"model": args["model_name"]})

        def execute(self, requests):
            self.metric.increment(len(requests))
            value = np.array([self.metric.value()], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for _ in requests]
"""


def test_a_model_has_metrics_of_its_own(repository: Path) -> None:
    write_model(repository, "one", METRICS)
    write_model(repository, "two", METRICS)
    with testing.load(repository / "one") as one, testing.load(repository / "two") as two:
        assert [one.infer(INPUT0=[1])["OUTPUT0"].item() for _ in range(3)] == [1, 2, 3]
        assert two.infer(INPUT0=[1])["OUTPUT0"].item() == 1
