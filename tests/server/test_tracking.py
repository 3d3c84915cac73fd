"""The tracking backend in a whole server: identities through it, over deaths, reloads and moves, and bad detections.

What is expected are the identities that the package `trackers` gives (`tests/stub/backends/library_tracks.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http

from stubserve.checking.repository import check_repositories
from tests.made_tracks import Frame, scene, switches
from tests.real_server import PATIENCE_S, Serving, eventually
from tests.stub.backends.library_tracks import RECORD, SCENES, frames_of

pytest.importorskip("scipy", reason="`make test-long` installs it")

pytestmark = pytest.mark.long

OUTPUTS = ("TRACK_BOXES", "TRACK_IDS", "TRACK_CLASSES", "TRACK_SCORES", "TRACK_AGES")
CPU = "instance_group [ { count: %d kind: KIND_CPU } ]"


def write_tracker(repository: Path, text: str = "", instances: int = 1, **parameters: object) -> None:
    (repository / "tracker" / "1").mkdir(parents=True, exist_ok=True)
    lines = ['backend: "tracking"', CPU % instances, text]
    lines += [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in parameters.items()]
    (repository / "tracker" / "config.pbtxt").write_text("\n".join(lines))


def inputs_of(**arrays: np.ndarray) -> list[http.InferInput]:
    made = []
    for name, array in arrays.items():
        datatype = "INT64" if array.dtype == np.int64 else "FP32"
        made.append(http.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


class Camera:
    """One camera: sends its frames, again where its instance has died, and keeps the identities of its detections."""

    def __init__(self, server: Serving, sequence: int | str, frames: Sequence[Frame]) -> None:
        self._client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=PATIENCE_S)
        self._sequence = sequence
        self._frames = frames
        self.identities: list[list[int]] = []
        self.lost = 0  # frames

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            frame = self._frames[len(self.identities)]
            tracked = self._answer(frame)
            identities = np.zeros(len(frame.boxes), int)
            for box, identity, score in zip(
                tracked["TRACK_BOXES"], tracked["TRACK_IDS"], tracked["TRACK_SCORES"], strict=True
            ):
                (index,) = np.flatnonzero((frame.boxes == box).all(axis=1))
                assert frame.scores[index] == score
                identities[index] = identity
            self.identities.append(identities.tolist())

    def _answer(self, frame: Frame) -> dict[str, np.ndarray]:
        inputs = inputs_of(BOXES=frame.boxes, SCORES=frame.scores, CLASSES=frame.classes)
        lost = False
        while True:
            try:
                answer = self._client.infer(
                    "tracker",
                    inputs,
                    sequence_id=self._sequence,
                    sequence_start=not self.identities,
                    sequence_end=len(self.identities) == len(self._frames) - 1,
                )
                self.lost += lost
                return {name: answer.as_numpy(name) for name in OUTPUTS}
            except http.InferenceServerException as error:
                if "not healthy" not in str(error):
                    raise
                lost = True
                time.sleep(0.05)


def expected(name: str) -> list[list[int]]:
    recorded: list[list[int]] = json.loads(RECORD.read_text())[name]
    return recorded


@pytest.mark.parametrize("name", SCENES)
def test_identities_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    frames, options = frames_of(name)
    write_tracker(tmp_path, **options._asdict())
    with Serving(tmp_path) as server:
        camera = Camera(server, "front door", frames)
        camera.send(len(frames))
    assert camera.identities == expected(name)
    assert camera.lost == 0


def test_identities_outlive_a_killed_stub(tmp_path: Path) -> None:
    """Killed again and again, in the middle of a sequence: a frame may have to be sent again, and nothing else."""
    frames, options = frames_of("usual")
    write_tracker(tmp_path, **options._asdict())
    with Serving(tmp_path, "--stub-restart-limit=100") as server:
        camera = Camera(server, 1, frames)
        for count in (20, 1, 30, 2, len(frames) - 53):
            camera.send(count)
            for pid in server.stub_pids():
                os.kill(pid, signal.SIGKILL)
    assert camera.identities == expected("usual")
    assert switches(frames, camera.identities) == 0


def test_many_cameras_on_instances_that_die(tmp_path: Path) -> None:
    """Twelve cameras at once share two instances, which are killed now and then; each is tracked as if alone."""
    names = [name for name in SCENES if SCENES[name][2] == SCENES["usual"][2]]
    write_tracker(tmp_path, instances=2)
    with Serving(tmp_path, "--stub-restart-limit=100") as server, ThreadPoolExecutor(12) as pool:
        followed = names * (12 // len(names))
        cameras = [Camera(server, 10 + k, frames_of(name)[0]) for k, name in enumerate(followed)]
        sending = [pool.submit(camera.send, 150) for camera in cameras]
        for frames in (200, 600, 700, 1300):
            eventually(lambda frames=frames: sum(len(camera.identities) for camera in cameras) > frames)
            for pid in server.stub_pids()[: 2 if frames == 700 else 1]:
                os.kill(pid, signal.SIGKILL)
        for sent in sending:
            sent.result(PATIENCE_S)
    for name, camera in zip(followed, cameras, strict=True):
        assert camera.identities == expected(name)
    assert sum(camera.lost for camera in cameras) <= 5 * 12


def test_idle_cameras_keep_no_place_from_others(tmp_path: Path) -> None:
    """Twelve share two slots, and would be idle for long: each is answered at once, and its identities go on."""
    frames, options = frames_of("usual")
    slots = "oldest { max_candidate_sequences: 2 } max_sequence_idle_microseconds: 900000000"
    state = 'state { input_name: "TRACKS" output_name: "NEW_TRACKS" data_type: TYPE_UINT8 dims: [ -1 ] }'
    write_tracker(tmp_path, f"sequence_batching {{ {slots} {state} }}", **options._asdict())
    with Serving(tmp_path) as server:
        cameras = [Camera(server, 10 + k, frames) for k in range(12)]
        for _ in range(10):
            for camera in cameras:
                camera.send(3)
    for camera in cameras:
        assert camera.identities == expected("usual")[:30]
        assert camera.lost == 0


def test_identities_go_on_in_a_model_that_is_loaded_again(tmp_path: Path) -> None:
    """With other parameters, then with other instances: the old instances go while their cameras are under way."""
    frames, _ = frames_of("usual")
    write_tracker(tmp_path, instances=2)
    with Serving(tmp_path, "--model-control-mode=explicit", "--load-model=tracker") as server:
        cameras = [Camera(server, name, frames) for name in ("a", "b", "c")]

        def send(count: int) -> None:
            for camera in cameras:
                camera.send(count)

        def reload(instances: int) -> None:
            # Tracks are lost for the same number of frames as without these parameters, so the record holds.
            write_tracker(tmp_path, instances=instances, frame_rate=60, lost_track_buffer=15)
            answer = server.request("POST", "/v2/repository/models/tracker/load")
            assert answer.status == 200, answer
            send(1)
            eventually(lambda: len(server.stub_pids()) == instances)

        send(40)
        stubs = set(server.stub_pids())
        reload(2)
        assert not stubs & set(server.stub_pids())
        send(20)
        reload(1)
        send(20)
        reload(3)
        send(len(frames) - 83)
    for camera in cameras:
        assert camera.identities == expected("usual")
        assert camera.lost == 0


def test_bad_detections_fail_their_request_alone(tmp_path: Path) -> None:
    """Another camera goes on meanwhile, and so does the camera itself, as if that frame had not been sent."""
    write_tracker(tmp_path, most_detections=50)
    frames, _ = frames_of("usual")
    good = frames[0].boxes
    nan, turned = good.copy(), good.copy()
    nan[2, 1] = np.nan
    turned[1] = (50, 50, 40, 60)
    scores = np.full(len(good), np.inf, np.float32)
    bad: list[tuple[dict[str, np.ndarray], str]] = [
        ({"BOXES": nan}, "input 'BOXES' of model 'tracker': detection 2 is ["),
        ({"BOXES": turned}, "detection 1 is [50.0, 50.0, 40.0, 60.0], which has a negative size"),
        ({"BOXES": np.zeros((51, 4), np.float32)}, "has 51 boxes, and the parameter most_detections allows 50"),
        ({"BOXES": np.zeros((2, 5), np.float32)}, "unexpected shape for input 'BOXES' for model 'tracker'"),
        ({"BOXES": np.zeros(4, np.float32)}, "unexpected shape for input 'BOXES' for model 'tracker'"),
        ({"BOXES": good.astype(np.int64)}, "data-type"),
        ({"BOXES": good, "SCORES": scores}, "input 'SCORES' of model 'tracker': detection 0 is inf"),
        ({"BOXES": good, "SCORES": scores[1:]}, f"has {len(good) - 1} numbers for {len(good)} boxes"),
        ({"SCORES": scores}, "a request to model 'tracker' must have the input 'BOXES'"),
        ({"BOXES": good, "TRACKS": scores}, "unexpected inference input 'TRACKS'"),
    ]
    with Serving(tmp_path) as server:
        one, other = Camera(server, 1, frames), Camera(server, 2, frames)
        client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=PATIENCE_S)
        for arrays, text in [*bad, *bad]:
            one.send()
            other.send()
            with pytest.raises(http.InferenceServerException) as refused:
                client.infer("tracker", inputs_of(**arrays), sequence_id=1)
            assert text in str(refused.value)
            assert refused.value.status() == "400"
        pids = server.stub_pids()
        for camera in (one, other):
            camera.send(len(frames) - len(camera.identities))
        assert server.stub_pids() == pids
    assert one.identities == other.identities == expected("usual")


def test_a_state_is_not_for_clients(tmp_path: Path) -> None:
    write_tracker(tmp_path)
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        assert "NEW_TRACKS" not in str(server.get("/v2/models/tracker").json())
        client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=PATIENCE_S)
        with pytest.raises(http.InferenceServerException, match="unexpected inference output 'NEW_TRACKS'"):
            client.infer(
                "tracker",
                inputs_of(BOXES=np.zeros((0, 4), np.float32)),
                sequence_id=1,
                sequence_start=True,
                outputs=[http.InferRequestedOutput("NEW_TRACKS")],
            )


def test_frames_without_detections(tmp_path: Path) -> None:
    """They count for the age, and a track goes on behind them."""
    write_tracker(tmp_path)
    ages = []
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=PATIENCE_S)
        for step in range(8):
            boxes = np.array([] if step in (3, 4) else [[10, 10, 50, 90]], np.float32).reshape(-1, 4)
            answer = client.infer("tracker", inputs_of(BOXES=boxes), sequence_id=1, sequence_start=step == 0)
            ages.append(dict(zip(answer.as_numpy("TRACK_IDS"), answer.as_numpy("TRACK_AGES"), strict=True)))
    assert ages == [{}, {1: 1}, {1: 2}, {}, {}, {1: 5}, {1: 6}, {1: 7}]


def test_a_batch_dimension(tmp_path: Path) -> None:
    """For ensembles whose other members have one."""
    write_tracker(tmp_path, "max_batch_size: 4")
    frames = scene(1, frames=3)
    with Serving(tmp_path) as server:
        server.wait_until_ready()
        client = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=PATIENCE_S)
        for step, frame in enumerate(frames):
            inputs = inputs_of(BOXES=frame.boxes[None], SCORES=frame.scores[None])
            answer = client.infer("tracker", inputs, sequence_id=1, sequence_start=step == 0)
        assert answer.as_numpy("TRACK_BOXES").shape[::2] == (1, 4)
        assert answer.as_numpy("TRACK_IDS").shape == answer.as_numpy("TRACK_AGES").shape


def test_check_knows_what_a_load_would_refuse(tmp_path: Path) -> None:
    def problems() -> list[str]:
        return [problem.text for problem in check_repositories([tmp_path], tmp_path).problems]

    write_tracker(tmp_path, frame_rate=25)
    assert problems() == []
    for more, text in (
        (
            {"minimum_iou_threshold": 2},
            "parameter 'minimum_iou_threshold' of model 'tracker' must be a number from 0 to",
        ),
        ({"match_thresh": 0.8}, "parameter 'match_thresh' of model 'tracker' is none of the tracker's; these are"),
        ({"text": "dynamic_batching { }"}, "needs sequence_batching with one state"),
    ):
        write_tracker(tmp_path, **more)  # type: ignore[arg-type]
        (found,) = problems()
        assert text in found
    server = Serving(tmp_path)
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()
    assert "needs sequence_batching with one state" in server.output
