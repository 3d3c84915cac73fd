"""Follows a camera with the model `camera`, and says when each face is seen.

    python model_repository/camera/client.py [SOURCE] [--video FILE.mp4] [--picture FILE.jpg] [--url localhost:8000]

SOURCE is what the model takes: `rtsp://...`, `http://...`, or `file:NAME` in its folder of clips. Without one it is the
clip of make_clip.py. --video writes what the stream shows, with the boxes drawn in, and --picture one frame of that.
Needs numpy and OpenCV, and PyAV for --video and for the clip.
"""

import argparse
import base64
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

CLIP = Path(__file__).with_name("clips") / "faces.mp4"
COLORS = ((255, 209, 71), (94, 234, 212), (255, 138, 158), (147, 197, 253), (190, 242, 100))
RATE = 25


def events(url: str, source: str) -> Iterator[dict[str, Any]]:
    """What the stream has for each frame. What happens to the source goes to stderr."""
    request = urllib.request.Request(
        f"http://{url}/v2/models/camera/generate_stream", json.dumps({"SOURCE": source}).encode()
    )
    with urllib.request.urlopen(request) as lines:
        for line in lines:
            name, _, text = line.decode().partition(":")
            if name != "data":
                continue
            event = json.loads(text)
            if "error" in event:
                sys.exit(f"the stream of {source} has ended: {event['error']}")
            if "EVENT" in event:
                print(*event["EVENT"], file=sys.stderr)
            else:
                yield event


def drawn(event: dict[str, Any]) -> np.ndarray:
    """The picture of a frame with its boxes (BGR)."""
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(event["PICTURE"]), np.uint8), cv2.IMREAD_COLOR)
    for face, box in boxes(event):
        left, top, right, bottom = map(round, box)
        color = COLORS[face % len(COLORS)]
        cv2.rectangle(picture, (left, top), (right, bottom), color, 2)
        cv2.putText(picture, str(face), (left, top - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.6, color, 2, cv2.LINE_AA)
    return picture


def boxes(event: dict[str, Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Identity, and x1, y1, x2, y2 in pixels of the picture. A list of one element comes as the element."""
    return zip(np.ravel(event["TRACK_IDS"]).tolist(), np.reshape(event["TRACK_BOXES"], (-1, 4)), strict=True)


class Progress:
    """How many frames come in a second. On a terminal a line on stderr says so as they come."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._frames = 0

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        return f"{self._frames} frames in {seconds:.1f} s: {self._frames / seconds:.1f} frames/s"

    def count(self) -> None:
        self._frames += 1
        if sys.stderr.isatty() and time.monotonic() - self._said > 0.5:
            self._said = time.monotonic()
            print(f"\r{self}", end=" ", file=sys.stderr, flush=True)


class Video:
    """Writes pictures to a file, at the times of their frames."""

    def __init__(self, file: Path) -> None:
        import av

        self._av = av
        self._container = av.open(str(file), "w")
        self._stream = self._container.add_stream("libx264", rate=RATE)
        self._stream.pix_fmt = "yuv420p"
        self._began: float | None = None

    def add(self, picture: np.ndarray, time_s: float) -> None:
        if self._began is None:
            self._began = time_s
            self._stream.height, self._stream.width = picture.shape[:2]
        frame = self._av.VideoFrame.from_ndarray(picture, "bgr24")
        frame.pts = round((time_s - self._began) * RATE)
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        if self._began is not None:
            self._container.mux(self._stream.encode())
        self._container.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", help="an address that the model takes (default: the made clip)")
    parser.add_argument("--video", type=Path, metavar="FILE.mp4", help="write what is seen, with boxes")
    parser.add_argument("--picture", type=Path, metavar="FILE.jpg", help="write one frame of it")
    parser.add_argument(
        "--at", type=float, default=3.0, metavar="S", help="the frame at this time (default: %(default)s)"
    )
    parser.add_argument(
        "--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.source is None and not CLIP.exists():
        import make_clip

        make_clip.make(CLIP)

    video = Video(args.video) if args.video else None
    seen: dict[int, list[float]] = {}
    progress = Progress()
    try:
        for event in events(args.url, args.source or f"file:{CLIP.name}"):
            time_s = event["TIME"]
            progress.count()
            for face, _ in boxes(event):
                if face not in seen:
                    print(f"{time_s:5.2f} s: face {face} comes", flush=True)
                seen.setdefault(face, []).append(time_s)
            if video is not None:
                video.add(drawn(event), time_s)
            if args.picture and time_s >= args.at:
                cv2.imwrite(str(args.picture), drawn(event))
                args.picture = None
    except KeyboardInterrupt:
        pass
    except urllib.error.HTTPError as error:
        text = error.read().decode().removeprefix("data: ")
        sys.exit(f"the server at {args.url} refused: {json.loads(text)['error']}")
    except OSError as error:
        reason = getattr(error, "reason", error)
        sys.exit(f"no server answers at {args.url} ({reason}): start one with `stubserve serve model_repository`")
    finally:
        if video is not None:
            video.close()
    print(progress)
    for face, times in seen.items():
        print(f"face {face}: {times[0]:.2f} s to {times[-1]:.2f} s, in {len(times)} frames")


if __name__ == "__main__":
    main()
