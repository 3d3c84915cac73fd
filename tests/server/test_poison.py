"""Requests that kill the stub: their model goes on, the log names them, and they are refused where that is wanted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import Answer, Serving, eventually, io_config, write_model

# Dies of any negative number.
FRAGILE = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            arrays = [request.inputs()[0].as_numpy() for request in requests]
            if any((array < 0).any() for array in arrays):
                os._exit(3)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
GOOD = np.ones((1, 1), np.float32)
POISON = -GOOD


def infer(server: Serving, array: np.ndarray, model: str = "fragile", id: str = "") -> Answer:
    body = {
        "id": id,
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}],
    }
    return server.request("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())


@pytest.mark.parametrize("good_between", [True, False])
def test_poison_never_turns_a_model_off(repository: Path, good_between: bool) -> None:
    write_model(repository, "fragile", FRAGILE, io_config(dims="-1, -1"))
    with Serving(repository, "--stub-restart-limit=2") as server:
        for _ in range(4):
            answer = infer(server, POISON)
            assert answer.status == 500
            assert "exited with code 3" in answer.error
            if good_between:
                assert infer(server, GOOD).status == 200
        assert infer(server, GOOD).status == 200


def test_a_model_that_cannot_start_is_given_up_still(repository: Path) -> None:
    source = FRAGILE.replace(
        "def execute",
        """def initialize(self, args):
            marker = args["model_repository"] + "/started"
            if os.path.exists(marker):
                os._exit(4)
            open(marker, "w").close()

        def execute""",
    )
    write_model(repository, "fragile", source, io_config(dims="-1, -1"))
    with Serving(repository, "--stub-restart-limit=2") as server:
        assert infer(server, POISON).status == 500
        server.wait_for("is not tried again")
        answer = infer(server, GOOD)
        assert answer.status == 503
        assert "died 3 times in a row" in answer.error


def test_the_log_names_who_sent_it(repository: Path) -> None:
    write_model(repository, "fragile", FRAGILE, io_config(dims="-1, -1"))
    with Serving(repository) as server:
        assert infer(server, POISON, id="first").status == 500
        server.wait_for(r"instance 'fragile_0' was executing 'first' of 127\.0\.0\.1:\d+ when its stub died")
        assert infer(server, GOOD).status == 200
        assert "likely the cause" not in server.output
        assert infer(server, POISON, id="second").status == 500
        server.wait_for(r"the request 'second' of 127\.0\.0\.1:\d+, or one .* at 2 deaths .*--quarantine-secs")
        # It is not refused unless that is wanted.
        assert infer(server, POISON, id="third").status == 500
        server.wait_for("the request 'third' .* at 3 deaths")


def test_an_innocent_request_is_not_named(repository: Path) -> None:
    """Stubs that something else kills, while they execute requests that are all alike."""
    source = """
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.marker = args["model_repository"] + "/kill"

            def execute(self, requests):
                if os.path.exists(self.marker):
                    os.remove(self.marker)
                    os._exit(3)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                        for r in requests]
    """
    folder = write_model(repository, "fragile", source, io_config(dims="-1, -1"))
    with Serving(repository, "--quarantine-secs=600") as server:
        for _ in range(3):
            (folder / "kill").touch()
            assert infer(server, GOOD).status == 500
            assert infer(server, GOOD).status == 200
        assert "likely the cause" not in server.output


def test_quarantine(repository: Path) -> None:
    write_model(repository, "fragile", FRAGILE, io_config(dims="-1, -1"))
    with Serving(repository, "--quarantine-secs=600") as server:
        assert infer(server, POISON).status == 500
        assert infer(server, POISON).status == 500
        (stub,) = eventually(server.stub_pids)
        for _ in range(5):
            answer = infer(server, POISON, id="again")
            assert answer.status == 500
            assert answer.error.startswith(
                "[request id: again] the request is not executed: 2 stubs of model 'fragile'"
            )
        assert infer(server, GOOD).status == 200
        assert infer(server, 2 * POISON).status == 500  # another one, which is not known
        server.wait_for_all("is restarted in", 3)


def test_large_poison_is_known_again_though_the_model_writes_to_it(repository: Path) -> None:
    source = FRAGILE.replace(
        "            if any", "            for array in arrays:\n                array *= 2\n            if any"
    )
    write_model(repository, "fragile", source, io_config(dims="-1, -1"))
    poison = np.full((64, 1024), -3, np.float32)
    with Serving(repository, "--quarantine-secs=600") as server:
        # The model has changed the first before it is looked at, so a third is needed.
        statuses = [server.infer_array("fragile", poison) for _ in range(4)]
        assert [answer.status for answer in statuses] == [500] * 4
        assert "is not executed" in statuses[-1].error
        assert server.infer_array("fragile", -poison).status == 200


def ask_all(server: Serving, arrays: Sequence[np.ndarray]) -> list[Answer]:
    """Sends all at once."""
    with ThreadPoolExecutor(len(arrays)) as pool:
        return list(pool.map(lambda number: infer(server, arrays[number], id=str(number)), range(len(arrays))))


def test_good_requests_leave_the_poisons_batch(repository: Path) -> None:
    """After a death all of its batch run alone, so only the poison dies, and only it is refused."""
    config = io_config(dims="-1", max_batch_size=8, extra="dynamic_batching { }")
    write_model(repository, "fragile", FRAGILE, config)
    arrays = [POISON, *(GOOD * (number + 1) for number in range(7))]
    hold = {"TRITONSERVER_DELAY_SCHEDULER": "8"}
    with Serving(repository, "--quarantine-secs=600", environment=hold) as server:
        assert [answer.status for answer in ask_all(server, arrays)] == [500] * 8
        server.wait_for("and 4 more requests when its stub died")
        assert [answer.status for answer in ask_all(server, arrays)] == [500] + [200] * 7
        answers = ask_all(server, arrays)
        assert [answer.status for answer in answers] == [500] + [200] * 7
        assert "is not executed" in answers[0].error
        server.wait_for_all("is restarted in", 2)


def test_one_death_is_one_death_for_requests_that_are_alike(repository: Path) -> None:
    """Those that are equal to each other, as of several health checks, are no cause for being there several times."""
    config = io_config(dims="-1", max_batch_size=8, extra="dynamic_batching { }")
    write_model(repository, "fragile", FRAGILE, config)
    hold = {"TRITONSERVER_DELAY_SCHEDULER": "8"}
    with Serving(repository, "--quarantine-secs=600", environment=hold) as server:
        assert [answer.status for answer in ask_all(server, [POISON] + [GOOD] * 7)] == [500] * 8
        assert infer(server, GOOD).status == 200
        assert "likely the cause" not in server.output


# Each stream stays open. The stub dies of a negative number, or of the second 5.
OPEN = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.senders, self.fives = [], 0

        def execute(self, requests):
            for request in requests:
                array = request.inputs()[0].as_numpy()
                self.fives += int(array[0] == 5)
                if array[0] < 0 or self.fives == 2:
                    os._exit(3)
                sender = request.get_response_sender()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
                self.senders.append(sender)
"""


@pytest.mark.parametrize(("numbers", "refused"), [((1, -1, 1, -2, 1), False), ((5, 5, 5, 5, 5), True)])
def test_only_streams_without_others_beside_them_are_refused(
    repository: Path, numbers: tuple[int, ...], refused: bool
) -> None:
    """A poison that is another each time has no innocent stream refused; copies of a poison do not hide it."""
    config = io_config(dims="1", extra="model_transaction_policy { decoupled: true }")
    write_model(repository, "fragile", OPEN, config)
    with Serving(repository, "--quarantine-secs=600") as server, contextlib.ExitStack() as stack:
        answers = []
        for number in numbers:
            connection = stack.enter_context(contextlib.closing(server.connect()))
            connection.request("POST", "/v2/models/fragile/generate_stream", json.dumps({"INPUT0": number}).encode())
            answers.append(stack.enter_context(connection.getresponse()))
            first = answers[-1].readline()
            if len(answers) in (2, 4):
                assert b"exited with code 3" in first + answers[-2].read()
        assert (b"is not executed" in first) is refused


def test_an_open_stream_is_named(repository: Path) -> None:
    """The model dies in a thread, when `execute` has long returned."""
    source = """
        import os, threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(target=self.run, args=(request,)).start()

            def run(self, request):
                sender = request.get_response_sender()
                array = request.inputs()[0].as_numpy()
                if (array < 0).any():
                    os._exit(3)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    config = io_config(dims="1", extra="model_transaction_policy { decoupled: true }")
    write_model(repository, "fragile", source, config)
    with Serving(repository, "--quarantine-secs=600", "--stub-restart-limit=1") as server:

        def stream(number: int) -> bytes:
            body = json.dumps({"id": "s", "INPUT0": number}).encode()
            return server.request("POST", "/v2/models/fragile/generate_stream", body).body

        for _ in range(2):
            assert b"exited with code 3" in stream(-1)
            assert b'"OUTPUT0":1.0' in stream(1)
        server.wait_for("the request 's' of 127.* at 2 deaths")
        assert b"is not executed" in stream(-1)
        assert b'"OUTPUT0":1.0' in stream(1)


def test_the_client_of_an_ensemble_and_a_calling_model_are_named(repository: Path) -> None:
    write_model(repository, "fragile", FRAGILE, io_config(dims="-1, -1"))
    caller = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceRequest(
                        model_name="fragile", requested_output_names=["OUTPUT0"], inputs=request.inputs(),
                        request_id=request.request_id(),
                    ).exec()
                    for request in requests
                ]
    """
    write_model(repository, "caller", caller, io_config(dims="-1, -1"))
    steps = (
        'step [ { model_name: "fragile" model_version: -1 '
        'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ]'
    )
    ensemble = io_config(dims="-1, -1", extra=f"ensemble_scheduling {{ {steps} }}")
    write_model(repository, "ensemble", config=ensemble.replace('backend: "python"', 'platform: "ensemble"'))
    with Serving(repository) as server:
        assert infer(server, POISON, "ensemble", id="whole").status == 500
        server.wait_for(r"executing 'whole' of 127\.0\.0\.1:\d+ when")
        assert infer(server, POISON, "caller", id="called").status == 500
        server.wait_for("executing 'called' of model instance 'caller_0' when")
        server.wait_for("the request 'called' .* at 2 deaths")
