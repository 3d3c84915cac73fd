"""Measures the example that follows cameras, with four cameras behind a real RTSP server, and what dies costs.

    python -m tools.cameras [--cameras 4] [--seconds 15] [--only rates|deaths|trace|growth] [--minutes 60]

The clip of model_repository/camera plays in a loop, at its 25 frames a second, out of aio-rtsp-toolkit. Each camera is
followed over gRPC, with boxes and identities but without the picture. Printed are the frames a second of all cameras
together, how long after its frame an event comes, and what was dropped; the same where frames without motion are passed
over (a fifth of the clip stands still). Then the source, the detector, the tracker and the decoder are killed, one
after the other. Then the trace of a single frame is drawn. With --minutes the cameras are at last followed for so long,
with a row of what the server keeps for each minute.

Needs what the examples and `make test-long` need.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import tritonclient.grpc as triton

from stubserve.commands.trace import draw, read_spans
from tools.bench.processes import Memory, stubs
from tools.bench.servers import Server, stubserve
from tools.ports import free_ports

ROOT = Path(__file__).parents[1]
MODELS = ("camera", "camera_picture", "face_detector", "face_tracker", "faces")
OUTPUTS = ("TRACK_BOXES", "TRACK_IDS", "RECEIVED", "NUMBER", "GAP", "EVENT")
# In GAP
STILL, LATE = 1, 2
SERVER = """
import asyncio, sys
from aio_rtsp_toolkit.server import RtspServer
asyncio.run(RtspServer(sys.argv[2], "127.0.0.1", int(sys.argv[1])).serve_forever())
"""
PATIENCE_S = 60.0


class Event(NamedTuple):
    """One event of a stream: when it came (`monotonic`), how long after its frame, what was dropped before it."""

    at: float
    delay_s: float
    gap: list[int]
    identities: list[int]


class Camera:
    """Follows a source, and asks again when its stream ends, until `stop`."""

    def __init__(self, port: int, model: str, source: str) -> None:
        self.events: list[Event] = []
        self.told: collections.Counter[str] = collections.Counter()
        self.asked = 0
        self._call = (port, model, source)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        port, model, source = self._call
        given = triton.InferInput("SOURCE", [1], "BYTES")
        given.set_data_from_numpy(np.array([source.encode()], np.object_))
        while not self._over.is_set():
            ended = threading.Event()
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                client.start_stream(lambda result, error, ended=ended: self._take(result, error, ended))
                wanted = [triton.InferRequestedOutput(name) for name in OUTPUTS]
                self.asked += 1
                client.async_stream_infer(model, [given], outputs=wanted, enable_empty_final_response=True)
                while not ended.wait(0.05) and not self._over.is_set():
                    pass
                client.stop_stream(cancel_requests=True)
            self._over.wait(0.1)

    def _take(self, result: Any, error: Any, ended: threading.Event) -> None:
        if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
            ended.set()
        elif result.as_numpy("EVENT") is not None:
            self.told[result.as_numpy("EVENT")[0].decode()] += 1
        else:
            delay = time.time() - int(result.as_numpy("RECEIVED")[0]) / 1e9
            gap, identities = (result.as_numpy(name).tolist() for name in ("GAP", "TRACK_IDS"))
            self.events.append(Event(time.monotonic(), delay, gap, identities))


def write(folder: Path) -> None:
    """The example, with sources by RTSP; `gated` passes over frames without motion."""
    examples = ROOT / "model_repository"
    subprocess.run([sys.executable, "-m", "stubserve", "fetch", examples], stdout=subprocess.DEVNULL, check=True)
    for model in MODELS:
        shutil.copytree(examples / model, folder / model)
    config = (folder / "camera" / "config.pbtxt").read_text()
    for name, more in {"camera": {}, "gated": {"motion": "0.2"}}.items():
        given = {"rtsp": "tcp", "networks": "loopback", **more}
        text = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{one}" }} }}\n' for key, one in given.items()
        )
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config.replace('name: "camera"', f'name: "{name}"') + text)


class Source:
    """The RTSP server of all cameras."""

    def __init__(self, port: int, folder: Path) -> None:
        self._command = [sys.executable, "-c", SERVER, str(port), str(folder)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._start()


@contextlib.contextmanager
def following(server: Server, model: str, urls: list[str]) -> Iterator[list[Camera]]:
    """All cameras, when each has begun to send events."""
    cameras = [Camera(server.grpc_port, model, url) for url in urls]
    try:
        until(lambda: all(camera.events for camera in cameras))
        yield cameras
    finally:
        for camera in cameras:
            camera.stop()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:.0f} s")
        time.sleep(0.01)


def rates(server: Server, model: str, urls: list[str], seconds: float) -> str:
    """A row: what all cameras together have sent in so many seconds."""
    with following(server, model, urls) as cameras:
        time.sleep(1)
        starts, cpu, begin = (
            [len(camera.events) for camera in cameras],
            server.processes().cpu_seconds(),
            time.monotonic(),
        )
        time.sleep(seconds)
        lasted, cpu = time.monotonic() - begin, server.processes().cpu_seconds() - cpu
        events = [event for camera, start in zip(cameras, starts, strict=True) for event in camera.events[start:]]
    p50, p99 = np.percentile([event.delay_s for event in events], [50, 99]) * 1e3
    still, late = (sum(event.gap[reason] for event in events) / lasted for reason in (STILL, LATE))
    return (
        f"| {model} | {len(events) / lasted:.1f} | {still:.1f} | {late:.1f} | {p50:.0f} ms | {p99:.0f} ms "
        f"| {cpu / lasted:.2f} |"
    )


def killed(server: Server, what: str, urls: list[str], kill: Callable[[], None]) -> str:
    """A row: what a death costs the cameras."""
    with following(server, "camera", urls) as cameras:
        time.sleep(1)
        before, begin = stubs(server.pid), time.monotonic()
        marks = [(len(camera.events), camera.asked, camera.told.copy()) for camera in cameras]
        last = [set(camera.events[-1].identities) for camera in cameras]
        kill()
        # Some events for each camera, after the longest of their pauses
        time.sleep(6)
        until(lambda: all(camera.events[-1].at > begin + 5.5 for camera in cameras))
        after = stubs(server.pid)
        pauses, failed, asked, kept = [], 0, 0, 0
        for camera, (mark, had_asked, told), known in zip(cameras, marks, last, strict=True):
            times = [begin, *(event.at for event in camera.events[mark:])]
            pauses.append(max(later - earlier for earlier, later in itertools.pairwise(times)))
            failed += camera.told["failed"] - told["failed"]
            asked += camera.asked - had_asked
            kept += bool(known & set(camera.events[-1].identities))
    gone, come = before.keys() - after.keys(), after.keys() - before.keys()
    return (
        f"| {what} | {len(gone)} ended, {len(come)} new | {max(pauses):.1f} s | {failed} | {asked} | "
        f"{kept} of {len(cameras)} |"
    )


def growth(server: Server, urls: list[str], minutes: int) -> None:
    """A row for each minute, and what the last has more than the one after a quarter of the time. Sizes are in MiB."""
    tree = server.processes()
    memories: list[Memory] = []
    with following(server, "camera", urls) as cameras:
        for minute in range(1, minutes + 1):
            counts = [len(camera.events) for camera in cameras]
            time.sleep(60)
            frames = sum(len(camera.events) - count for camera, count in zip(cameras, counts, strict=True)) / 60
            memories.append(memory := tree.memory())
            files = sum(
                process.num_fds() for process in (psutil.Process(server.pid), *map(psutil.Process, stubs(server.pid)))
            )
            blocks = len(list(Path("/dev/shm").iterdir()))
            print(
                f"| {minute} | {frames:.1f} | {memory.parent_anon:.1f} | {memory.stub_anon:.1f} "
                f"| {memory.total_pss:.1f} | {files} | {blocks} |",
                flush=True,
            )
    begin, end = memories[minutes // 4], memories[-1]
    print(
        f"\nAfter minute {minutes // 4 + 1}: parent {end.parent_anon - begin.parent_anon:+.1f}, largest stub "
        f"{end.stub_anon - begin.stub_anon:+.1f}, all {end.total_pss - begin.total_pss:+.1f}"
    )


def kill_stub(server: Server, model: str) -> None:
    """The first of the model's stubs."""
    os.kill(next(pid for pid, name in stubs(server.pid).items() if name.startswith(f"{model}_0")), signal.SIGKILL)


def trace(server: Server, frame: bytes, collected: Path) -> str:
    """The drawn trace of a clip of one frame, which is sent as bytes."""
    given = triton.InferInput("VIDEO", [len(frame)], "UINT8")
    given.set_data_from_numpy(np.frombuffer(frame, np.uint8))
    # The first request finds nothing warm, and is not traced.
    for headers in ({}, {"traceparent": f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"}):
        ended = threading.Event()

        def take(result: Any, error: Any, ended: threading.Event = ended) -> None:
            if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
                ended.set()

        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.start_stream(take, headers=headers)
            wanted = [triton.InferRequestedOutput(name) for name in OUTPUTS]
            client.async_stream_infer("camera", [given], outputs=wanted, enable_empty_final_response=True)
            ended.wait(PATIENCE_S)
            client.stop_stream()
    until(lambda: collected.exists() and "face_tracker" in collected.read_text())
    return draw(read_spans(collected.read_text().splitlines()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cameras", description=__doc__.splitlines()[0])
    parser.add_argument("--cameras", type=int, default=4, help="how many are followed at once (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15, help="how long each rate is measured (%(default)s)")
    parser.add_argument("--only", choices=("rates", "deaths", "trace", "growth"), help="one part alone")
    parser.add_argument("--minutes", type=int, default=0, help="how long growth is looked for (%(default)s)")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "model_repository" / "camera"))
    make_clip = importlib.import_module("make_clip")
    rtsp_port, collector_port = free_ports(2)
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        write(folder / "models")
        make_clip.make(folder / "clips" / "faces.mp4")
        make_clip.make(folder / "frame.mp4", 1 / make_clip.RATE)
        collector = subprocess.Popen(
            [sys.executable, "-m", "tools.otlp_receiver", str(folder / "traces"), str(collector_port)],
            stdout=subprocess.DEVNULL,
        )
        stack.callback(collector.kill)
        program = stubserve(Path(sys.executable))
        flags = [
            "level=TIMESTAMPS",
            f"opentelemetry,url=http://127.0.0.1:{collector_port}/v1/traces",
            "mode=opentelemetry",
            "rate=1000000",
        ]
        flags += ["opentelemetry,bsp_schedule_delay=200"]
        program = replace(program, arguments=(*program.arguments, *(f"--trace-config={flag}" for flag in flags)))
        server = stack.enter_context(Server(program, folder / "models", folder / "log"))
        camera = Source(rtsp_port, folder / "clips")
        stack.callback(camera.kill)
        urls = [f"rtsp://127.0.0.1:{rtsp_port}/faces.mp4/play_count_0"] * options.cameras
        shown = f"{make_clip.WIDTH}x{make_clip.HEIGHT} at {make_clip.RATE} frames/s"
        print(f"{options.cameras} cameras of {shown}; load of the machine before: {os.getloadavg()[0]:.1f}\n")
        if options.only in (None, "rates"):
            print("| model | frames/s in all | without motion | too late | p50 | p99 | cores |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for model in ("camera", "gated"):
                print(rates(server, model, urls, options.seconds), flush=True)
        if options.only in (None, "deaths"):
            print(
                "\n| killed | stubs | longest pause | events `failed` | asked again | cameras with a face they knew |"
            )
            print("| --- | --- | --- | --- | --- | --- |")
            print(killed(server, "the source", urls, camera.restart), flush=True)
            for what in ("face_detector", "face_tracker", "camera"):
                print(killed(server, what, urls, functools.partial(kill_stub, server, what)), flush=True)
        if options.only in (None, "trace"):
            print("\n" + trace(server, (folder / "frame.mp4").read_bytes(), folder / "traces"))
        if options.only in (None, "growth") and options.minutes:
            print(
                "\n| minute | frames/s | parent's RssAnon | largest stub's | PSS of all | descriptors | in /dev/shm |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- |")
            growth(server, urls, options.minutes)


if __name__ == "__main__":
    main()
