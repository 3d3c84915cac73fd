"""A video model whose frames go to another model, which may die. Needs PyAV."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Serving, eventually, write_model

pytestmark = pytest.mark.long
pytest.importorskip("av")

from tests.server.grpc_calls import connected  # noqa: E402
from tests.server.test_video import config, follow, following, frames_of, numbers_of, refusal, request  # noqa: E402
from tests.video_sources import LEFT, SIDE, Camera, clip, web  # noqa: E402

# The column in which the bright square of a picture begins
FINDER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                picture = request.inputs()[0].as_numpy()
                assert picture.shape == (1, 3, 120, 160), picture.shape
                columns = np.nonzero(picture[0, 0] > 0.5)[1]
                found = np.array([[columns.min()]], np.int32)
                said = "{} {}".format(request.correlation_id(), request.flags()).encode()
                outputs = [pb_utils.Tensor("X", found), pb_utils.Tensor("SAID", np.array([[said]], np.object_))]
                responses.append(pb_utils.InferenceResponse(outputs))
            return responses
"""
FINDER_CONFIG = """
    backend: "python"
    max_batch_size: 8
    input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 120, 160 ] } ]
    dynamic_batching { }
"""
# Two responses for each frame
TWICE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(2):
                    output = pb_utils.Tensor("PART", np.array([number], np.int64))
                    sender.send(pb_utils.InferenceResponse([output]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PART = 'output [ { name: "PART" data_type: TYPE_INT64 dims: [ 1 ] } ]'
TWICE_CONFIG = """
    backend: "python"
    max_batch_size: 0
    input [ { name: "FRAME" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]
    model_transaction_policy { decoupled: true }
"""
OUTPUTS = """
    output [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    clip(folder / "a.mp4")
    return folder


@pytest.fixture(scope="module")
def serving(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("models")
    write_model(path, "finder", FINDER, FINDER_CONFIG + OUTPUTS)
    write_model(path, "twice", TWICE, TWICE_CONFIG + PART)
    more = {"files": clips, "networks": "loopback", "width": 160, "layout": "NCHW", "type": "FP32"}
    found = config(model="finder", model_input="IMAGE", model_batched=1, **more)
    write_model(path, "found", "", found + OUTPUTS)
    write_model(path, "missing", "", found.replace('"finder"', '"none"') + OUTPUTS)
    write_model(path, "unfit", "", found.replace('"IMAGE"', '"OTHER"') + OUTPUTS)
    write_model(path, "doubled", "", config(model="twice", files=clips) + PART)
    with Serving(path) as server:
        server.wait_until_ready()
        yield server


def test_the_outputs_of_the_model(serving: Serving) -> None:
    """They come with the frame's time and number, and without the batch's dimension; the frame itself does not."""
    responses = follow(serving, "found", "file:a.mp4")
    assert [response["EVENT"][0] for response in responses if "EVENT" in response] == ["opened", "ended"]
    assert numbers_of(responses) == list(range(50))
    for number, response in enumerate(frames_of(responses)):
        assert set(response) == {"X", "SAID", "TIME", "RECEIVED", "NUMBER", "GAP", "FIT"}
        assert response["X"].shape == (1,)
        assert response["X"][0] / response["FIT"][0] == pytest.approx(LEFT * number % (320 - SIDE), abs=4)


def test_a_model_that_is_not_asked_for(serving: Serving) -> None:
    before = serving.statistics("finder")["inference_count"]
    assert len(follow(serving, "found", "file:a.mp4", ["NUMBER"])) == 50
    assert serving.statistics("finder")["inference_count"] == before


def test_a_stream_is_a_sequence(serving: Serving) -> None:
    message = request("found", "file:a.mp4", ["SAID"])
    message.parameters["sequence_id"].int64_param = 77
    message.parameters["sequence_start"].bool_param = True
    with connected(serving) as grpc:
        said = [answer.infer_response.raw_output_contents for answer in grpc.stream(message)]
    texts = [contents[0][4:].decode() for contents in said if contents]
    assert texts == ["77 1", *["77 0"] * 49]


def test_several_responses_for_a_frame(serving: Serving) -> None:
    found = frames_of(follow(serving, "doubled", "file:a.mp4"))
    assert [(int(one["NUMBER"][0]), int(one["PART"][0])) for one in found[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert len(found) == 100


@pytest.mark.parametrize(("model", "text"), [("missing", "none"), ("unfit", "OTHER")])
def test_a_model_that_cannot_be_asked(serving: Serving, model: str, text: str) -> None:
    assert text in refusal(serving, model, "file:a.mp4")


def has_a_frame(serving: Serving) -> bool:
    return re.search(rb'stubserve_instance_batches{instance="finder_0".* [1-9]', serving.metrics().body) is not None


def test_a_model_that_dies(serving: Serving, clips: Path) -> None:
    """It costs the frame that it has, and not the stream: later frames wait until it is back."""
    camera = Camera()
    with web(clips, live=camera.serve) as port, camera.running():
        with following(serving, "found", f"http://127.0.0.1:{port}/live") as stream:
            before = stream.frame()["NUMBER"][0]
            stubs = {pid for pid in serving.stub_pids() if b"finder" in Path(f"/proc/{pid}/cmdline").read_bytes()}
            for pid in stubs:
                os.kill(pid, signal.SIGSTOP)
            eventually(lambda: has_a_frame(serving))
            for pid in stubs:
                os.kill(pid, signal.SIGKILL)
            assert "model 'finder'" in stream.event("failed")
            assert stream.frame()["NUMBER"][0] > before
        camera.cut()
