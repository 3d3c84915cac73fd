"""Makes a clip to look at: faces that float past each other, in front of the Hubble deep field.

    python model_repository/camera/make_clip.py [FILE.mp4]

Both pictures are NASA's and in the public domain, and come with the package scikit-image. Without a FILE the clip goes
where the model `camera` finds it, as `file:faces.mp4`. Needs PyAV, OpenCV, numpy and scikit-image.
"""

import argparse
import math
from collections.abc import Iterator
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import av
import cv2
import numpy as np

WIDTH, HEIGHT, RATE, SECONDS = 640, 360, 25, 10
# Nothing moves any more after so many seconds.
MOVES = 8.0
CLIP = Path(__file__).with_name("clips") / "faces.mp4"
# In the picture: middle and size of the face, and how much is shown around it
MIDDLE, SIZE, SHOWN = (224, 118), (88, 112), 108


def places(time_s: float) -> Iterator[tuple[float, float, float, bool]]:
    """The faces, those in the back first: middle, scale, and whether it is the mirrored picture."""
    time = min(time_s, MOVES) / MOVES
    yield 90 + 460 * time, 80 + 20 * math.sin(6 * time), 0.5, True
    yield 590 - 520 * time, 285, 0.6, False
    yield 110 + 430 * time, 235 - 30 * math.sin(3 * time), 0.8, True


def boxes(time_s: float) -> list[tuple[float, float, float, float]]:
    """x1, y1, x2, y2 of the faces, those in the back first."""
    sizes = [(x, y, SIZE[0] * scale / 2, SIZE[1] * scale / 2) for x, y, scale, _ in places(time_s)]
    return [(x - wide, y - tall, x + wide, y + tall) for x, y, wide, tall in sizes]


def picture(time_s: float, ground: np.ndarray, portrait: np.ndarray) -> np.ndarray:
    made = ground.astype(np.float32)
    for x, y, scale, mirrored in places(time_s):
        given = np.ascontiguousarray(portrait[:, ::-1]) if mirrored else portrait
        where = np.array([[scale, 0, x - scale * SHOWN], [0, scale, y - scale * SHOWN]])
        placed = cv2.warpAffine(given, where, (WIDTH, HEIGHT))
        made += (placed[..., :3] - made) * placed[..., 3:]
    return made.clip(0, 255).astype(np.uint8)


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """The ground, and the face with the square around it, RGB; the fourth channel is how much of it is there."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise SystemExit("the pictures come with scikit-image: pip install scikit-image")
    folder = Path(package.origin).parent / "data"
    sky, astronaut = (
        cv2.cvtColor(cv2.imread(str(folder / name)), cv2.COLOR_BGR2RGB)
        for name in ("hubble_deep_field.jpg", "astronaut.png")
    )
    x, y = MIDDLE
    face = astronaut[y - SHOWN : y + SHOWN, x - SHOWN : x + SHOWN].astype(np.float32)
    ys, xs = np.mgrid[-SHOWN:SHOWN, -SHOWN:SHOWN]
    there = ((SHOWN - np.hypot(xs, ys)) / 10).clip(0, 1)
    return sky[200 : 200 + HEIGHT, 100 : 100 + WIDTH], np.dstack([face, there.astype(np.float32)])


def make(file: Path, seconds: float = SECONDS) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    ground, portrait = pictures()
    with av.open(str(file), "w") as clip:
        stream = clip.add_stream("libx264", rate=RATE, options={"crf": "23", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, RATE)
        for number in range(round(seconds * RATE)):
            frame = av.VideoFrame.from_ndarray(picture(number / RATE, ground, portrait), "rgb24")
            clip.mux(stream.encode(frame))
        clip.mux(stream.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=CLIP, help="default: %(default)s")
    make(parser.parse_args().file)
