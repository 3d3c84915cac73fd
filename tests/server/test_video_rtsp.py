"""The video backend with servers of RTSP, which are killed and come back. Needs PyAV, aio-rtsp-toolkit and rtsp-rs."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.real_server import Serving, eventually, write_model

pytestmark = pytest.mark.long
pytest.importorskip("av")

from tests.server.test_video import config, following, refusal  # noqa: E402
from tests.video_sources import clip  # noqa: E402
from tools.ports import free_ports  # noqa: E402

# Plays the clips of a folder, interleaved in the connection, each time from the beginning
TCP = """
import asyncio, sys
from aio_rtsp_toolkit.server import RtspServer
asyncio.run(RtspServer(sys.argv[2], "127.0.0.1", int(sys.argv[1])).serve_forever())
"""
# Sends the frames of a clip in datagrams, one after the other, to all who watch
UDP = """
import sys, time, av, rtsp
server = rtsp.Server("127.0.0.1:" + sys.argv[1])
server.start()
container = av.open(sys.argv[2] + "/clip.h264")
packets = [bytes(packet) for packet in container.demux() if packet.size]
while True:
    for packet in packets:
        server.send_frame(packet, 3600)
        time.sleep(0.04)
"""


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def playing(script: str, port: int, folder: Path) -> Iterator[None]:
    command = [sys.executable, "-c", script, str(port), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clips")
    clip(made / "clip.mp4", 500, codec="libx264", b_frames=0)
    clip(made / "clip.h264", 100, codec="libx264", b_frames=0)
    return made


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("models")
    for transport in ("tcp", "udp"):
        text = config(rtsp=transport, networks="loopback", stall_ms=5000, reconnect_ms=600000)
        write_model(path, transport, "", text)
    write_model(path, "public", "", config(rtsp="tcp"))
    with Serving(path) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.parametrize(
    ("transport", "script", "package", "name"),
    [("tcp", TCP, "aio_rtsp_toolkit", "clip.mp4"), ("udp", UDP, "rtsp", "stream")],
)
def test_a_camera_that_is_killed(
    serving: Serving, folder: Path, transport: str, script: str, package: str, name: str
) -> None:
    """It is opened again when it is back, and frames are counted on."""
    pytest.importorskip(package)
    (port,) = free_ports(1)
    address = f"rtsp://127.0.0.1:{port}/{name}"
    with ExitStack() as stack:
        with playing(script, port, folder):
            stream = stack.enter_context(following(serving, transport, address))
            assert stream.event("opened") == "h264 320x240, live"
            numbers = [int(stream.frame()["NUMBER"][0]) for _ in range(20)]
            assert numbers == sorted(set(numbers))
        while "Connection refused" not in stream.event("lost"):
            pass
        with playing(script, port, folder):
            assert stream.event("opened") == "h264 320x240, live"
            assert stream.frame()["NUMBER"][0] > numbers[-1]


def test_rtsp_keeps_to_the_networks(serving: Serving) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]", "2130706433"):
        assert "is in none of the networks" in refusal(serving, "public", f"rtsp://{host}:554/x")
