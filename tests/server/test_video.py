"""The video backend in a server: clips, cameras that come and go, and addresses that are refused. Needs PyAV."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from stubserve.checking.repository import check_repositories
from tests.real_server import PATIENCE_S, Serving, eventually, write_model
from tests.server.grpc_calls import Grpc, connected

pytestmark = pytest.mark.long
av = pytest.importorskip("av")

from tests.video_sources import LEFT, SIDE, TOP, Camera, clip, picture, web  # noqa: E402

PASSED_OVER, STILL, LATE, BROKEN = range(4)
TYPES = {"UINT8": np.uint8, "INT32": np.int32, "FP32": np.float32, "FP64": np.float64, "INT64": np.int64}
Response = dict[str, Any]


def config(**parameters: Any) -> str:
    given = "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n' for name, value in parameters.items()
    )
    return f'backend: "video"\n{given}'


MODELS = {
    "plain": config(),
    "five": config(rate=5),
    "keys": config(key_frames=1),
    "gated": config(motion=0.5),
    "small": config(width=80),
    "boxed": config(width=200, height=200, letterbox=1, layout="NCHW", type="FP32", color="BGR"),
    "quick": config(max_age_ms=200),
    "impatient": config(stall_ms=2000),
    "brief": config(reconnect_ms=2000),
    "tiny": config(max_pixels=100),
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    clip(folder / "a.mp4")
    clip(folder / "a.m3u8", codec="libx264", hls_time="0.5", hls_playlist_type="vod")
    clip(folder / "still.mp4", moves_from=30)
    clip(folder / "big.mp4", width=1280, height=720, frames=200)
    whole = bytearray(clip(folder / "whole.ts", codec="mpeg2video").read_bytes())
    early = clip(folder / "early.mp4", movflags="faststart").read_bytes()
    (folder / "cut.mp4").write_bytes(early[: len(early) * 3 // 4])
    (folder / "endless.mp4").write_bytes((folder / "a.mp4").read_bytes()[:-100])
    for start in range(len(whole) // 3, len(whole) // 2, 50):
        whole[start] ^= 0xFF
    (folder / "damaged.ts").write_bytes(whole)
    (folder / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(100_000))
    (folder / "empty.mp4").touch()
    return folder


@pytest.fixture(scope="module")
def serving(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("models")
    for name, text in MODELS.items():
        write_model(path, name, "", text + config(files=clips, networks="127.0.0.1/32").partition("\n")[2])
    write_model(path, "shut", "", config())
    with Serving(path) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def camera(clips: Path) -> Iterator[tuple[Camera, str]]:
    made = Camera()
    with web(clips, live=made.serve) as port:
        yield made, f"http://127.0.0.1:{port}/live"
        made.cut()


def request(model: str, source: str | bytes, outputs: Sequence[str] = ()) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    if isinstance(source, str):
        content = source.encode()
        message.inputs.add(name="SOURCE", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    else:
        message.inputs.add(name="VIDEO", datatype="UINT8", shape=[len(source)])
        message.raw_input_contents.append(source)
    for name in outputs:
        message.outputs.add(name=name)
    return message


class Following:
    """A stream that is read one response at a time."""

    def __init__(self, grpc: Grpc, model: str, source: str | bytes, outputs: Sequence[str] = ()) -> None:
        self.call = grpc.stub.ModelStreamInfer(iter([request(model, source, outputs)]), timeout=PATIENCE_S)

    def __iter__(self) -> Iterator[Response]:
        for answer in self.call:
            assert not answer.error_message, answer.error_message
            response = answer.infer_response
            found: Response = {}
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
                if output.datatype == "BYTES":
                    first = int.from_bytes(content[:4], "little")
                    found[output.name] = (content[4 : 4 + first].decode(), content[8 + first :].decode())
                else:
                    array = np.frombuffer(content, TYPES[output.datatype])
                    found[output.name] = array.reshape(list(output.shape))
            if found:
                yield found

    def event(self, kind: str) -> str:
        """Reads on to an event of this kind; its detail."""
        for response in self:
            if response.get("EVENT", ("",))[0] == kind:
                detail: str = response["EVENT"][1]
                return detail
        raise AssertionError(f"the stream has ended without {kind}")

    def frame(self) -> Response:
        """Reads on to the next frame."""
        return next(response for response in self if "NUMBER" in response)


@contextmanager
def following(serving: Serving, model: str, source: str | bytes, outputs: Sequence[str] = ()) -> Iterator[Following]:
    with connected(serving) as grpc:
        stream = Following(grpc, model, source, outputs)
        yield stream
        stream.call.cancel()


def follow(serving: Serving, model: str, source: str | bytes, outputs: Sequence[str] = ()) -> list[Response]:
    with following(serving, model, source, outputs) as stream:
        return list(stream)


def refusal(serving: Serving, model: str, source: str | bytes) -> str:
    with connected(serving) as grpc:
        errors = [answer.error_message for answer in grpc.stream(request(model, source)) if answer.error_message]
    assert len(errors) == 1
    return str(errors[0])


def frames_of(responses: list[Response]) -> list[Response]:
    return [response for response in responses if "NUMBER" in response]


def numbers_of(responses: list[Response]) -> list[int]:
    return [int(response["NUMBER"][0]) for response in frames_of(responses)]


def test_every_frame_of_a_file(serving: Serving) -> None:
    first, *found, last = follow(serving, "plain", "file:a.mp4")
    assert first["EVENT"] == ("opened", "mpeg4 320x240, until its end")
    assert last["EVENT"] == ("ended", "50 frames")
    assert numbers_of(found) == list(range(50))
    for number, response in enumerate(found):
        assert response["FRAME"].shape == (240, 320, 3)
        assert response["TIME"][0] == pytest.approx(number / 25)
        assert response["GAP"].tolist() == [0, 0, 0, 0]
        left = LEFT * number
        assert response["FRAME"][TOP + SIDE // 2, left + SIDE // 2].min() > 180
        assert response["FRAME"][TOP + SIDE // 2, (left + 2 * SIDE) % 320].max() < 70
    assert found[0]["RECEIVED"][0] <= found[-1]["RECEIVED"][0]


def test_only_what_is_asked_for(serving: Serving) -> None:
    responses = follow(serving, "plain", "file:a.mp4", ["NUMBER"])
    assert len(responses) == 50
    assert all(list(response) == ["NUMBER"] for response in responses)


def test_the_bytes_of_a_file(serving: Serving, clips: Path) -> None:
    content = (clips / "a.mp4").read_bytes()
    assert numbers_of(follow(serving, "plain", content, ["NUMBER"])) == list(range(50))


def test_a_rate(serving: Serving) -> None:
    found = frames_of(follow(serving, "five", "file:a.mp4"))
    assert numbers_of(found) == list(range(0, 50, 5))
    assert [response["GAP"].tolist() for response in found[1:]] == [[4, 0, 0, 0]] * 9


def test_key_frames(serving: Serving) -> None:
    found = frames_of(follow(serving, "keys", "file:a.mp4"))
    assert numbers_of(found) == list(range(0, 50, 10))
    assert found[1]["GAP"].tolist() == [9, 0, 0, 0]
    assert [round(float(response["TIME"][0]), 3) for response in found] == [0.0, 0.4, 0.8, 1.2, 1.6]


def test_motion(serving: Serving) -> None:
    found = frames_of(follow(serving, "gated", "file:still.mp4"))
    assert numbers_of(found)[0] == 0
    assert 30 < numbers_of(found)[1] < 35
    assert found[1]["GAP"][STILL] == numbers_of(found)[1] - 1


def test_one_side_keeps_the_proportions(serving: Serving) -> None:
    found = frames_of(follow(serving, "small", "file:a.mp4"))
    assert found[0]["FRAME"].shape == (60, 80, 3)
    assert found[0]["FIT"].tolist() == [0.25, 0.25, 0, 0]


def test_letterbox(serving: Serving) -> None:
    """FIT leads from a place in the tensor back to that in the source."""
    found = frames_of(follow(serving, "boxed", "file:a.mp4"))
    picture, fit = found[20]["FRAME"], found[20]["FIT"]
    assert picture.shape == (3, 200, 200)
    assert picture.dtype == np.float32
    assert 0 <= picture.min() < picture.max() <= 1
    assert picture[:, 0, 0] == pytest.approx([114 / 255] * 3)
    rows, columns = np.nonzero(picture[1] > 0.6)
    x, y = (columns.mean() + 0.5 - fit[2]) / fit[0], (rows.mean() + 0.5 - fit[3]) / fit[1]
    assert (x, y) == (pytest.approx(20 * LEFT + SIDE / 2, abs=2), pytest.approx(TOP + SIDE / 2, abs=2))


def test_as_events(serving: Serving) -> None:
    body = b'{"SOURCE": "file:a.mp4"}'
    answer = serving.request("POST", "/v2/models/five/generate_stream", body)
    assert answer.body.decode().count('"NUMBER":') == 10


def test_over_http(serving: Serving, clips: Path) -> None:
    """A file whose index is at its end is moved in by ranges."""
    with web(clips) as port:
        for name in ("a.mp4", "whole.ts", "a.m3u8"):
            responses = follow(serving, "five", f"http://127.0.0.1:{port}/{name}")
            assert numbers_of(responses) == list(range(0, 50, 5)), name
            assert responses[-1]["EVENT"][0] == "ended"


def test_a_live_source(serving: Serving, camera: tuple[Camera, str]) -> None:
    """Its frames come as they are taken, a change of their size is said, and the source sees its viewer go."""
    filming, address = camera
    with following(serving, "plain", address) as stream:
        eventually(lambda: filming.viewers)
        with filming.running():
            assert stream.event("opened") == "mpeg2video 320x240, live"
            assert stream.frame()["FRAME"].shape == (240, 320, 3)
            filming.size = (160, 128)
            assert stream.event("changed") == "160x128"
            assert stream.frame()["FRAME"].shape == (128, 160, 3)
        assert filming.viewers == 1
        stream.call.cancel()
        eventually(lambda: not filming.viewers)


def test_a_source_that_breaks_off_comes_back(serving: Serving, camera: tuple[Camera, str]) -> None:
    filming, address = camera
    with following(serving, "plain", address) as stream, filming.running():
        before = stream.frame()["NUMBER"][0]
        for _ in range(2):
            filming.cut()
            assert "has ended; it is opened again in 0.5 s" in stream.event("lost")
            assert "live" in stream.event("opened")
            after = stream.frame()["NUMBER"][0]
            assert after > before
            before = after


def test_a_source_that_stalls(serving: Serving, camera: tuple[Camera, str]) -> None:
    """It is left and opened again, with growing pauses."""
    filming, address = camera
    with following(serving, "impatient", address) as stream:
        with filming.running():
            stream.frame()
        assert "no frame for 2 s; it is opened again in 0.5 s" in stream.event("lost")
        assert "no frame for 2 s; it is opened again in 1 s" in stream.event("lost")
        with filming.running():
            stream.frame()
            filming.cut()
            assert "it is opened again in 0.5 s" in stream.event("lost")


def test_a_source_that_changes_its_codec(serving: Serving, camera: tuple[Camera, str]) -> None:
    """What comes cannot be decoded any more, so the source has stalled, and is looked at anew."""
    filming, address = camera
    with following(serving, "impatient", address) as stream, filming.running():
        assert stream.event("opened") == "mpeg2video 320x240, live"
        stream.frame()
        filming.codec = "libx264"
        while stream.event("opened") != "h264 320x240, live":
            pass
        stream.frame()


def test_a_live_playlist(serving: Serving, clips: Path) -> None:
    """It is read again while it has no end, and its parts are fetched as they appear."""
    *lines, end = (clips / "a.m3u8").read_text().replace("#EXT-X-PLAYLIST-TYPE:VOD\n", "").splitlines()
    assert end == "#EXT-X-ENDLIST"
    parts = [index + 1 for index, line in enumerate(lines) if line.endswith(".ts")]
    read = 0

    def live(handler: Any) -> None:
        nonlocal read
        read += 1
        content = "\n".join(lines[: parts[min(read, len(parts)) - 1]]).encode() + b"\n"
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    with ExitStack() as stack:
        port = stack.enter_context(web(clips, **{"live.m3u8": live}))
        stream = stack.enter_context(following(serving, "impatient", f"http://127.0.0.1:{port}/live.m3u8"))
        assert stream.event("opened") == "h264 320x240, live"
        numbers = [int(stream.frame()["NUMBER"][0]) for _ in range(40)]
        assert numbers == sorted(set(numbers))
        stream.event("lost")
    assert read >= len(parts)


def test_pictures_without_time_stamps(serving: Serving, clips: Path) -> None:
    """Many cameras answer with one JPEG after the other. FFmpeg would make up a time stamp for each."""
    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 320, 240, "yuvj420p", Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(picture(0, 320, 240), "rgb24").reformat(format="yuvj420p")
    content = bytes(encoder.encode(frame)[0])
    part = b"--next\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(content), content)

    def pictures(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        handler.end_headers()
        while True:
            handler.wfile.write(part)
            time.sleep(0.2)

    with ExitStack() as stack:
        port = stack.enter_context(web(clips, pictures=pictures))
        stream = stack.enter_context(following(serving, "plain", f"http://127.0.0.1:{port}/pictures"))
        assert stream.event("opened") == "mjpeg 320x240, live"
        # FFmpeg's would be 24 / 25.
        times = [float(stream.frame()["TIME"][0]) for _ in range(25)]
        assert times[-1] - times[0] > 2


def test_a_source_that_stays_away(serving: Serving, clips: Path) -> None:
    filming = Camera()
    with connected(serving) as grpc:
        with web(clips, live=filming.serve) as port:
            stream = Following(grpc, "brief", f"http://127.0.0.1:{port}/live")
            with filming.running():
                stream.frame()
            filming.cut()
        errors = [answer.error_message for answer in stream.call if answer.error_message]
    assert len(errors) == 1
    assert "the source is lost, and has not come back within 2 s" in errors[0]


def test_a_slow_reader_gets_no_old_frames(serving: Serving, camera: tuple[Camera, str]) -> None:
    """What it did not read in time is dropped by its age. Meanwhile another stream of the instance goes on."""
    filming, address = camera
    with following(serving, "quick", address) as slow, following(serving, "quick", address, ["NUMBER"]) as fast:
        eventually(lambda: filming.viewers == 2)
        with filming.running():
            slow.frame()
            first = fast.frame()["NUMBER"][0]
            while fast.frame()["NUMBER"][0] < first + 300:
                pass
            late = 0
            while not late:
                late = slow.frame()["GAP"][LATE]


def test_a_reader_that_leaves_while_it_is_waited_for(serving: Serving, camera: tuple[Camera, str]) -> None:
    filming, address = camera
    with following(serving, "plain", address) as stream, filming.running():
        stream.frame()
        until = filming.taken + 100
        eventually(lambda: filming.taken > until)
        stream.call.cancel()
        eventually(lambda: not filming.viewers)


def test_a_file_is_not_hurried(serving: Serving) -> None:
    """Nothing of a file is late, however slowly it is read."""
    with following(serving, "quick", "file:big.mp4") as stream:
        assert numbers_of(list(stream)) == list(range(200))


def test_damage(serving: Serving) -> None:
    """What can be decoded comes, with the right numbers, and the rest is counted."""
    for name in ("damaged.ts", "cut.mp4"):
        responses = follow(serving, "plain", f"file:{name}")
        assert responses[-1]["EVENT"][0] == "ended"
        found = frames_of(responses)
        assert len(found) > 20
        numbers = numbers_of(responses)
        for before, number, response in zip(numbers, numbers[1:], found[1:], strict=False):
            assert number - before - 1 == sum(response["GAP"])


@pytest.mark.parametrize(
    ("model", "source", "text"),
    [
        ("plain", "file:noise.mp4", "Invalid data found when processing input"),
        ("plain", "file:endless.mp4", "no frame of the source could be decoded"),
        ("plain", "file:empty.mp4", "the source cannot be read"),
        ("plain", b"nothing of the kind", "Invalid data found when processing input"),
        ("plain", b"", "the source cannot be read"),
        ("plain", "file:missing.mp4", "there is no file 'missing.mp4' in the folder of sources"),
        ("plain", "file:../../etc/passwd", "there is no file"),
        ("plain", "file:///etc/passwd", "there is no file"),
        ("plain", "file:%2e%2e/models/plain/config.pbtxt", "there is no file"),
        ("plain", "file:.", "there is no file"),
        ("plain", "a.mp4", "SOURCE has to begin with http:, https:, rtsp: or file:"),
        ("plain", "concat:/etc/passwd", "SOURCE has to begin with"),
        ("plain", "http://127.0.0.1/a b", "SOURCE has blanks"),
        ("plain", "http://127.0.0.1:0/", "leads to an address that is none of http, https"),
        ("plain", "http://127.0.0.1:1/", "the source cannot be read: Connection refused"),
        ("plain", "http://127.0.0.2:1/", "is in none of the networks that sources may be in"),
        ("plain", "http://[::ffff:127.0.0.2]:1/", "is in none of the networks"),
        ("plain", "rtsp://127.0.0.1:1/", "the parameter 'rtsp' of the model has to say 'tcp' or 'udp' first"),
        ("shut", "file:a.mp4", "the parameter 'files' of the model has to name a folder of sources first"),
        ("shut", "http://127.0.0.1:1/", "is in none of the networks"),
        ("shut", "http://localhost:1/", "is in none of the networks"),
        ("shut", "http://0x7f.1:1/", "is in none of the networks"),
        ("shut", "http://2130706433:1/", "is in none of the networks"),
        ("tiny", "file:a.mp4", "of more pixels than the parameter 'max_pixels' allows, which is 100"),
    ],
)
def test_what_is_refused(serving: Serving, model: str, source: str | bytes, text: str) -> None:
    assert text in refusal(serving, model, source)


def test_neither_and_both(serving: Serving) -> None:
    both = request("plain", "file:a.mp4")
    other = request("plain", b"x")
    both.inputs.extend(other.inputs)
    both.raw_input_contents.extend(other.raw_input_contents)
    neither = service_pb2.ModelInferRequest(model_name="plain")
    with connected(serving) as grpc:
        for message in (both, neither):
            answers = grpc.stream(message)
            assert any("has either SOURCE, an address, or VIDEO" in answer.error_message for answer in answers)


def redirect(location: str) -> Any:
    def page(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.end_headers()

    return page


def playlist(part: str, more: str = "") -> Any:
    text = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n{more}#EXTINF:1,\n{part}\n#EXT-X-ENDLIST\n".encode()

    def page(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return page


def test_nothing_leads_elsewhere(serving: Serving, clips: Path) -> None:
    """Neither a redirect nor a playlist, to another machine or to a file."""
    reached = []
    with web(clips, **{"secret.ts": lambda handler: reached.append(handler.path)}) as inside:
        elsewhere = f"http://127.0.0.2:{inside}/secret.ts"
        pages = {
            "moved.ts": redirect(elsewhere),
            "filed": redirect("file:///etc/passwd"),
            "list.m3u8": playlist(elsewhere),
            "files.m3u8": playlist(f"file://{clips}/whole.ts"),
            "locked.m3u8": playlist("whole.ts", '#EXT-X-KEY:METHOD=AES-128,URI="a.mp4"\n'),
            "turned.m3u8": playlist("moved.ts"),
            "around": redirect("around"),
            "fine": redirect("a.mp4"),
        }
        with web(clips, **pages) as port:
            address = f"http://127.0.0.1:{port}"
            for name in ("moved.ts", "list.m3u8", "turned.m3u8"):
                assert "is in none of the networks" in refusal(serving, "plain", f"{address}/{name}")
            for name in ("filed", "files.m3u8", "locked.m3u8"):
                refusal(serving, "plain", f"{address}/{name}")
            assert "redirects more than 5 times" in refusal(serving, "plain", f"{address}/around")
            assert "answers with 404" in refusal(serving, "plain", f"{address}/missing")
            assert numbers_of(follow(serving, "plain", f"{address}/fine", ["NUMBER"])) == list(range(50))
    assert reached == []


def test_a_description_of_a_session_opens_no_socket(serving: Serving, clips: Path) -> None:
    """FFmpeg would bind its ports, and send reports to the machine that it names."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        port = listening.getsockname()[1] - 1
        description = (
            f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=video {port} RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
        )
        (clips / "session.sdp").write_text(description)
        with web(clips) as server:
            for source in ("file:session.sdp", f"http://127.0.0.1:{server}/session.sdp", description.encode()):
                assert "the source cannot be read" in refusal(serving, "plain", source)
        with pytest.raises(BlockingIOError):
            listening.recv(1)


def test_a_stub_that_dies_in_the_middle(clips: Path, tmp_path: Path) -> None:
    write_model(tmp_path, "plain", "", config(files=clips))
    with Serving(tmp_path) as server, connected(server) as grpc:
        server.wait_until_ready()
        stream = Following(grpc, "plain", "file:big.mp4")
        stream.frame()
        os.kill(server.stub_pids()[0], signal.SIGKILL)
        assert any("is not healthy" in answer.error_message for answer in stream.call)
        server.wait_for("instance 'plain_0' is back")
        assert numbers_of(follow(server, "plain", "file:a.mp4", ["NUMBER"])) == list(range(50))


def test_an_instance_with_as_many_streams_as_it_may_have(
    camera: tuple[Camera, str], clips: Path, tmp_path: Path
) -> None:
    """The next one goes to the other instance, and one more waits until a stream has ended."""
    filming, address = camera
    group = "instance_group [ { count: 2 } ]"
    write_model(tmp_path, "single", "", config(streams=1, networks="loopback") + group)
    with Serving(tmp_path) as server, connected(server) as grpc:
        server.wait_until_ready()
        with filming.running():
            first, second = (Following(grpc, "single", address, ["NUMBER"]) for _ in range(2))
            first.frame()
            second.frame()
            third = Following(grpc, "single", address, ["NUMBER"])
            queued = 'nv_inference_pending_request_count{model="single",version="1"} 1'
            eventually(lambda: queued in server.metrics().body.decode())
            first.frame()
            assert filming.viewers == 2
            first.call.cancel()
            third.frame()
            for stream in (second, third):
                stream.call.cancel()


REFUSED = [
    (config(raet=5), "parameter 'raet' of model 'm0' is none of the video backend, which has color, files"),
    (config(rate="often"), "parameter 'rate' of model 'm1' must be a number from 0 on, got 'often'"),
    (config(layout="HWC"), "parameter 'layout' of model 'm2' must be NHWC or NCHW, got 'HWC'"),
    (config(letterbox=1), "parameter 'letterbox' of model 'm3' needs 'width' and 'height' besides"),
    (config(networks="home"), "has networks such as 192.168.7.0/24, and the words public, private, loopback"),
    (config(streams=0), "parameter 'streams' of model 'm5' must be more than 0"),
    (config() + "max_batch_size: 4", "max_batch_size must be 0, got 4"),
    (config() + "model_transaction_policy { decoupled: false }", "has to say: `model_transaction_policy"),
    (
        config() + 'output [ { name: "PICTURE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]',
        "the video backend has no output 'PICTURE', it has FRAME, TIME",
    ),
    (
        config() + 'output [ { name: "FRAME" data_type: TYPE_FP32 dims: [ -1, -1, 3 ] } ]',
        "configuration expects datatype TYPE_FP32 for output 'FRAME', model provides TYPE_UINT8",
    ),
    (config() + "instance_group [ { kind: KIND_GPU } ]", "GPU"),
]


def test_check_knows_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "fine", "", config(rate=5))
    write_model(models, "wrong", "", config(raet=5))
    (problem,) = check_repositories([models], tmp_path).problems
    assert "parameter 'raet' of model 'wrong'" in problem.text


def test_configurations_that_are_refused(tmp_path: Path) -> None:
    for index, (text, _) in enumerate(REFUSED):
        write_model(tmp_path, f"m{index}", "", text)
    with Serving(tmp_path, "--exit-on-error=false") as server:
        rows = server.request("POST", "/v2/repository/index", b"{}").json()
    reasons = {row["name"]: row["reason"] for row in rows}
    for index, (_, text) in enumerate(REFUSED):
        assert text in reasons[f"m{index}"]
