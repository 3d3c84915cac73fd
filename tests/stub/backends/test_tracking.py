"""The tracking backend by itself: its tracks beside those of the package `trackers`, their bytes, its options."""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.native import InputView, NativeRequest, NativeResponse
from stubserve_stub.backends.tracking import options as contract
from stubserve_stub.backends.tracking.backend import TrackingBackend
from stubserve_stub.backends.tracking.options import TrackerOptions, options_of
from stubserve_stub.backends.tracking.tracks import VERSION, Tracks
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

from tests.made_tracks import Frame, scene, switches

from .library_tracks import RECORD, SCENES, by_library, frames_of

FP32, INT64, UINT8 = 11, 9, 2


def assign() -> Any:
    optimize = pytest.importorskip("scipy.optimize", reason="`make test-long` installs it")
    return optimize.linear_sum_assignment


def tracked(frames: Any, options: TrackerOptions) -> list[list[int]]:
    """The identity of each detection of each frame, 0 for none; the tracks are read from their bytes for each frame."""
    solve = assign()
    state = Tracks(options, solve).state()
    found = []
    for frame in frames:
        tracks = Tracks.read(options, solve, state)
        seen = tracks.update(frame.boxes, frame.scores)
        state = tracks.state()
        identities = np.zeros(len(frame.boxes), int)
        identities[seen.detections] = seen.identities
        found.append(identities.tolist())
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_identities_are_those_of_the_library(name: str) -> None:
    assert tracked(*frames_of(name)) == json.loads(RECORD.read_text())[name]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_identities_are_those_of_the_library_that_is_installed(seed: int) -> None:
    pytest.importorskip("trackers")
    frames = scene(100 + seed, objects=3 + 2 * seed)
    assert tracked(frames, TrackerOptions()) == by_library(frames, TrackerOptions())


@pytest.mark.long
def test_objects_keep_their_identities() -> None:
    """Where they cross, too, and where one is missed or hidden for some frames."""
    identities = tracked(scene(1), TrackerOptions())
    assert switches(scene(1), identities) == 0
    # Every object soon has one, and hardly anything else
    assert max(map(max, identities)) <= 10
    assert sum(identity == 0 for frame in identities for identity in frame) < 0.1 * sum(map(len, identities))


def one(box: Any, score: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    return np.array([box], np.float32), np.array([score], np.float32)


NONE = np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
HERE, THERE = (0, 0, 10, 10), (100, 100, 110, 120)


@pytest.mark.long
def test_an_identity_is_never_used_again() -> None:
    """Not even when no track is left."""
    tracks = Tracks(TrackerOptions(lost_track_buffer=2), assign())
    last = 0
    for _ in range(5):
        tracks.update(*one(HERE))
        (identity,) = tracks.update(*one(HERE)).identities
        assert identity == last + 1
        last = identity
        for _ in range(4):
            assert len(tracks.update(*NONE).identities) == 0
        assert len(tracks) == 0


@pytest.mark.long
def test_the_age_counts_frames() -> None:
    """Those in which the object is not seen, too."""
    tracks = Tracks(TrackerOptions(), assign())
    ages = [tracks.update(*(NONE if frame in (4, 5) else one(HERE))).ages.tolist() for frame in range(8)]
    assert ages == [[], [1], [2], [3], [], [], [6], [7]]


@pytest.mark.long
def test_the_number_of_tracks_is_bounded() -> None:
    """Those that have been lost for longest make room; else the best detections come first."""
    tracks = Tracks(TrackerOptions(most_tracks=3), assign())
    boxes = np.array([[100 * k, 0, 100 * k + 50, 50] for k in range(6)], np.float32)
    scores = np.array([0.8, 0.95, 0.75, 0.9, 0.72, 0.85], np.float32)
    tracks.update(boxes, scores)
    assert len(tracks) == 3
    seen = tracks.update(boxes, scores)
    assert seen.detections.tolist() == [1, 3, 5]
    tracks.update(boxes[1:2], scores[1:2])
    tracks.update(boxes[[0, 1]], scores[[0, 1]])
    assert len(tracks) == 3
    seen = tracks.update(boxes, scores)
    assert dict(zip(seen.detections.tolist(), seen.identities.tolist(), strict=True)) == {0: 4, 1: 1, 5: 3}
    assert len(tracks.state()) == 16 + 3 * 120


@pytest.mark.long
def test_a_state_is_plain_bytes() -> None:
    """Other versions of the server have to read them: whoever changes a byte changes the version."""
    tracks = Tracks(TrackerOptions(), assign())
    tracks.update(*one(HERE))
    tracks.update(*one((1, 0, 11, 10)))
    state = tracks.state()
    assert struct.unpack_from("<IIq", state) == (1, 1, 1)
    floats = struct.unpack_from("<11d", state, 16)
    gain = 2.01 / 2.11
    expected = [gain, 0, 10 + gain, 10, 1 / 2.11, 0, 1 / 2.11, 0, 2.01 - 2.01 * gain, 1 - gain, 1.01 - 1 / 2.11]
    assert floats == pytest.approx(expected)
    assert struct.unpack_from("<4q", state, 16 + 88) == (1, 1, 0, 2)
    assert len(state) == 16 + 120


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b"", "the state of the tracks has 0 bytes, which is no header"),
        (bytes(15), "the state of the tracks has 15 bytes, which is no header"),
        (struct.pack("<IIq", VERSION + 1, 0, 0), f"has version {VERSION + 1}, and this server reads version {VERSION}"),
        (struct.pack("<IIq", VERSION, 2, 0) + bytes(120), "the state of 2 tracks cannot have 136 bytes"),
        (struct.pack("<IIq", VERSION, 2**32 - 1, 0), "the state of 4294967295 tracks cannot have 16 bytes"),
    ],
)
def test_other_bytes_are_refused(state: bytes, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        Tracks.read(TrackerOptions(), None, state)  # type: ignore[arg-type]


# Configurations


def parameters(**given: str) -> dict[str, Any]:
    return {"name": "m", "parameters": {name: {"string_value": value} for name, value in given.items()}}


def test_options() -> None:
    assert options_of({"name": "m"}) == TrackerOptions()
    given = options_of(
        parameters(track_activation_threshold="0.25", lost_track_buffer="10", frame_rate="12.5", EXECUTION_ENV_PATH="x")
    )
    assert given == TrackerOptions(track_activation_threshold=0.25, lost_track_buffer=10, frame_rate=12.5)
    assert [TrackerOptions(lost_track_buffer=n, frame_rate=r).most_missed for n, r in ((0, 30), (3, 15), (30, 60))] == [
        0,
        2,
        60,
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"track_activation_threshold": "1.5"}, "must be a number from 0 to 1, got '1.5'"),
        ({"minimum_iou_threshold": "nan"}, "must be a number from 0 to 1, got 'nan'"),
        ({"high_conf_det_threshold": "half"}, "must be a number from 0 to 1, got 'half'"),
        ({"frame_rate": "0"}, "must be a number from 0.001 to 100000, got '0'"),
        ({"lost_track_buffer": "-1"}, "must be an integer from 0 to 100000, got '-1'"),
        ({"minimum_consecutive_frames": "0"}, "must be an integer from 1 to 100000, got '0'"),
        ({"most_tracks": "1000000"}, "must be an integer from 1 to 100000, got '1000000'"),
        ({"most_detections": ""}, "must be an integer from 1 to 100000, got ''"),
        ({"Frame_rate": "30"}, "parameter 'Frame_rate' of model 'm' is none of the tracker's"),
        ({"track_buffer": "30"}, "parameter 'track_buffer' of model 'm' is none of the tracker's; these are track_act"),
    ],
)
def test_parameters_that_mean_nothing(given: dict[str, str], text: str) -> None:
    with pytest.raises(Refusal, match=text):
        options_of(parameters(**given))


def completed(**more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "m", "input": [], "output": [], **more}
    contract.complete(config)
    return config


def test_a_configuration_is_completed() -> None:
    config = completed()
    contract.validate(config)
    assert [tensor["name"] for tensor in config["input"] if tensor["optional"]] == ["SCORES", "CLASSES"]
    kept = completed(
        sequence_batching={"direct": {}}, output=[{"name": "TRACK_IDS", "data_type": "TYPE_INT64", "dims": ["-1"]}]
    )
    contract.validate(kept)
    assert kept["sequence_batching"]["direct"] == {}
    assert [tensor["name"] for tensor in kept["output"]] == ["TRACK_IDS"]


BOXES = {"name": "BOXES", "data_type": "TYPE_FP32", "dims": [-1, 4]}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"input": [{**BOXES, "name": "BOX"}]}, "unexpected input 'BOX', the tracking backend has BOXES, SCORES, CL"),
        (
            {"input": [{**BOXES, "data_type": "TYPE_FP16"}]},
            "expects datatype TYPE_FP16 for input 'BOXES', model provides",
        ),
        ({"input": [{**BOXES, "dims": [-1, 5]}]}, r"tensor 'BOXES': the model expects 2 dimensions"),
        ({"input": [{**BOXES, "optional": True}]}, "input 'BOXES' of the tracking backend cannot be optional"),
        ({"input": [{"name": "SCORES", "data_type": "TYPE_FP32", "dims": [-1]}]}, "must have the input 'BOXES'"),
        ({"output": [{**BOXES, "name": "NEW_TRACKS"}]}, "unexpected output 'NEW_TRACKS'"),
        ({"dynamic_batching": {"max_queue_delay_microseconds": "1"}}, "needs sequence_batching with one state"),
        ({"sequence_batching": {"state": [{"input_name": "S"}]}}, "needs sequence_batching with one state"),
        ({"sequence_batching": {"iterative_sequence": True}}, "has no use for iterative_sequence"),
    ],
)
def test_configurations_of_something_else(more: dict[str, Any], text: str) -> None:
    with pytest.raises(Refusal, match=text):
        contract.validate(completed(**more))


def test_an_environment_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(Refusal, match=r"the backend tracking needs the package scipy, .*'stubserve\[tracking\]'"):
        TrackingBackend().model_initialize(ModelFiles("", "", "", ()))


# Requests


def backend(batches: bool = False, **given: str) -> TrackingBackend:
    assign()
    made = TrackingBackend()
    made.model_initialize(ModelFiles("", "", "", ()))
    config = {**completed(max_batch_size=int(batches)), **parameters(**given)}
    arguments = {"model_config": json.dumps(config), "model_instance_kind": "CPU"}
    outputs = [tensor["name"] for tensor in config["output"]]
    made.instance_initialize(InstanceSetup("m_0", arguments, outputs, False))
    return made


def view(name: str, array: np.ndarray, batches: bool = False) -> InputView:
    datatype = {"float32": FP32, "int64": INT64, "uint8": UINT8}[str(array.dtype)]
    shape = [1, *array.shape] if batches else array.shape
    return InputView(name, datatype, shape, array.tobytes())


def asked(
    made: TrackingBackend, frame: Frame | None = None, batches: bool = False, **more: np.ndarray
) -> NativeResponse:
    arrays = {} if frame is None else {"BOXES": frame.boxes, "SCORES": frame.scores, "CLASSES": frame.classes}
    inputs = {name: view(name, array, batches) for name, array in {**arrays, **more}.items()}
    (response,) = made.compute([NativeRequest(inputs, made.instance.outputs, 1)])
    return response


@pytest.mark.long
@pytest.mark.parametrize("batches", [False, True])
def test_a_request(batches: bool) -> None:
    """Two frames, with the state of the first for the second."""
    made = backend(batches)
    frame = scene(1)[0]
    first = asked(made, frame, batches)
    (*_, state) = first.outputs
    assert (state.name, state.datatype) == ("NEW_TRACKS", UINT8)
    assert [output.shape[int(batches)] for output in first.outputs[:-1]] == [0] * 5
    given = {"TRACKS": np.frombuffer(state.memory, np.uint8)}
    outputs = {output.name: output for output in asked(made, frame, batches, **given).outputs}
    count = int((frame.scores >= 0.7).sum())
    assert outputs["TRACK_BOXES"].shape == ([1] if batches else []) + [count, 4]
    assert [outputs[name].datatype for name in ("TRACK_BOXES", "TRACK_IDS", "TRACK_CLASSES")] == [FP32, INT64, INT64]
    assert np.frombuffer(outputs["TRACK_AGES"].memory, np.int64).tolist() == [1] * count
    assert sorted(np.frombuffer(outputs["TRACK_IDS"].memory, np.int64)) == list(range(1, count + 1))
    for name, given_values in (("TRACK_SCORES", frame.scores), ("TRACK_CLASSES", frame.classes)):
        own = np.frombuffer(outputs[name].memory, given_values.dtype).tolist()
        assert own == given_values[frame.scores >= 0.7].tolist()


@pytest.mark.long
def test_scores_and_classes_may_be_left_out() -> None:
    made = backend()
    boxes = np.array([HERE, THERE], np.float32)
    (*_, state) = asked(made, BOXES=boxes).outputs
    outputs = asked(made, BOXES=boxes, TRACKS=np.frombuffer(state.memory, np.uint8)).outputs
    values = {output.name: np.asarray(output.memory).tolist() for output in outputs}
    assert values["TRACK_SCORES"] == [1, 1]
    assert values["TRACK_CLASSES"] == [0, 0]
    assert values["TRACK_IDS"] == [1, 2]


NAN = np.float32("nan")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"BOXES": np.array([HERE, (0, NAN, 1, 1)], np.float32)},
            "detection 1 is [0.0, nan, 1.0, 1.0], which has numbers",
        ),
        ({"BOXES": np.array([(0, 0, np.inf, 1)], np.float32)}, "numbers that are not finite"),
        (
            {"BOXES": np.array([HERE, (5, 0, 4, 1)], np.float32)},
            "detection 1 is [5.0, 0.0, 4.0, 1.0], which has a negative",
        ),
        ({"SCORES": np.zeros(1, np.float32)}, "a request to model 'm' must have the input 'BOXES'"),
        ({"BOXES": np.zeros((4, 4), np.float32)}, "has 4 boxes, and the parameter most_detections allows 3"),
        ({"BOXES": np.zeros((2, 4), np.float32), "SCORES": np.zeros(3, np.float32)}, "has 3 numbers for 2 boxes"),
        ({"BOXES": np.zeros((2, 4), np.float32), "CLASSES": np.zeros(1, np.int64)}, "has 1 numbers for 2 boxes"),
        ({"BOXES": np.zeros((1, 4), np.float32), "SCORES": np.array([NAN])}, "detection 0 is nan, which is no finite"),
    ],
)
def test_detections_that_make_no_sense(arrays: dict[str, np.ndarray], text: str) -> None:
    response = asked(backend(most_detections="3"), **arrays)
    assert text in response.error
    assert "model 'm'" in response.error
    assert response.code == codes.INVALID_ARG


def test_the_time_of_a_frame_is_bounded() -> None:
    """It grows with the third power of both numbers, so they are as small as what detectors usually give."""
    text = asked(backend(), BOXES=np.zeros((301, 4), np.float32)).error
    assert "has 301 boxes, and the parameter most_detections allows 300" in text
    assert TrackerOptions().most_tracks == 300


@pytest.mark.long
def test_odd_detections_that_are_none() -> None:
    """Empty frames, boxes without a size, the largest numbers: all are tracked, and no state breaks."""
    made = backend()
    boxes = np.array([(5, 5, 5, 5), (-3e38, -3e38, 3e38, 3e38), (0, 0, 1e-30, 1e-30)], np.float32)
    state = np.zeros(0, np.uint8)
    for given in (boxes, boxes[:0], boxes, boxes[::-1], boxes[:0], boxes):
        more = {"TRACKS": state} if len(state) else {}
        response = asked(made, BOXES=np.ascontiguousarray(given), **more)
        assert not response.error
        state = np.frombuffer(response.outputs[-1].memory, np.uint8)
    assert np.isfinite(np.frombuffer(state[16:].tobytes(), np.float64)).all()
