"""Decoupled models that keep the order of requests: what is held back takes little memory, and nobody hangs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.real_server import Serving, io_config, write_model
from tests.server.grpc_calls import connected

MIB = 1 << 20
STREAM = 100

ORDERED = "model_transaction_policy { decoupled: true } dynamic_batching { preserve_ordering: true }"

# 0: answered by a thread, once the stream of a later request does not get on any more, with how far that got.
# 1: such a stream, of 1 MiB each, out of execute.
BEHIND_A_SLOW_ONE = f"""
    import threading, numpy as np
    import triton_python_backend_utils as pb_utils

    def answer(array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.asarray(array, np.float32))])

    class TritonPythonModel:
        def initialize(self, args):
            self.sent = 0
            self.moved = threading.Event()

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                if request.inputs()[0].as_numpy()[0, 0] == 0:
                    self.sent = 0
                    threading.Thread(target=self.slow, args=(sender,)).start()
                    continue
                for number in range({STREAM}):
                    sender.send(answer(np.full((1, {MIB} // 4), number)))
                    self.sent = number + 1
                    self.moved.set()
                sender.send(flags=1)

        def slow(self, sender):
            self.moved.wait()
            while self.moved.wait(1):
                self.moved.clear()
            sender.send(answer([[self.sent]]), 1)
"""

# Answers the requests of a batch in turn, as models that make text do.
IN_TURN = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            senders = [request.get_response_sender() for request in requests]
            for token in range(1000):
                for sender in senders:
                    output = pb_utils.Tensor("OUTPUT0", np.array([[len(requests), token]], np.float32))
                    sender.send(pb_utils.InferenceResponse([output]))
            for sender in senders:
                sender.send(flags=1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "behind", BEHIND_A_SLOW_ONE, io_config(max_batch_size=1, extra=ORDERED))
    in_turn = ORDERED.replace("dynamic_batching {", "dynamic_batching { max_queue_delay_microseconds: 10000000")
    write_model(repository, "in_turn", IN_TURN, io_config(max_batch_size=2, extra=in_turn))
    with Serving(repository, "--shm-limit=64M") as serving:
        serving.wait_until_ready()
        yield serving


def request(model: str, id: str, value: float) -> Any:
    made = service_pb2.ModelInferRequest(model_name=model, id=id)
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    made.raw_input_contents.append(np.float32(value).tobytes())
    return made


def streamed(server: Serving, *requests: Any) -> list[tuple[str, np.ndarray]]:
    """The id and the output of each response to these requests on one stream."""
    with connected(server) as grpc:
        got = []
        for message in grpc.stream(*requests):
            assert not message.error_message
            response = message.infer_response
            got.append((response.id, np.frombuffer(response.raw_output_contents[0], np.float32)))
        return got


def test_a_stream_behind_a_slow_request_waits_instead_of_filling_the_arena(server: Serving) -> None:
    for _ in range(2):
        (first, sent), *stream = streamed(server, request("behind", "slow", 0), request("behind", "stream", 1))
        assert first == "slow"
        # Two groups of 2 MiB, and what a third was about to begin with.
        assert 1 <= sent[0] <= 6
        assert [id for id, _ in stream] == ["stream"] * STREAM
        assert [values[0] for _, values in stream] == list(range(STREAM))
        assert all(len(values) == MIB // 4 for _, values in stream)


def test_a_model_that_answers_a_batch_in_turn_is_not_stopped_by_itself(server: Serving) -> None:
    got = streamed(server, request("in_turn", "a", 0), request("in_turn", "b", 0))
    assert [id for id, _ in got] == ["a"] * 1000 + ["b"] * 1000
    assert [tuple(values) for _, values in got] == [(2.0, float(token)) for token in range(1000)] * 2
