"""A decoded frame as the tensor that a model wants, and the small grey picture that shows whether something moves."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.loading import import_package
from stubserve_stub.backends.video.options import VideoOptions
from stubserve_stub.runtime.failure import Refusal

# The colour of the bars beside a letterboxed picture: what detectors are trained with
_BARS = 114
_SMALL = (64, 36)
# A pixel of the small picture has changed if it differs by more, of 255
_CHANGED = 15


class Pictures:
    """Makes the tensors of one stream."""

    def __init__(self, options: VideoOptions) -> None:
        self._options = options
        # Each keeps the tables of one kind of picture.
        reformatter = import_package("av.video.reformatter", "video").VideoReformatter
        self._scaler, self._shrinker = reformatter(), reformatter()
        # From this version on a reformatter takes a thread for each core, whose stacks count as memory of the source.
        is_threaded = int(import_package("av", "video").__version__.partition(".")[0]) >= 17
        self._alone = {"threads": 1} if is_threaded else {}
        self._format = "bgr24" if options.color == "BGR" else "rgb24"
        self._before: Optional[np.ndarray] = None
        self._now: Optional[np.ndarray] = None

    def draw(self, frame: Any, canvas: Callable[[Sequence[int]], np.ndarray]) -> Tuple[List[int], List[float]]:
        """Draws the picture into the array that `canvas` has for its shape; the shape, and FIT.

        FIT: x and y of the source are (x - FIT[2]) / FIT[0] and (y - FIT[3]) / FIT[1].
        """
        options = self._options
        width, height, left, top = self._place(frame.width, frame.height)
        scaled = self._reformat(self._scaler, frame, width, height, self._format, "BILINEAR")
        whole = (options.height, options.width) if options.letterbox else (height, width)
        channels_first = options.layout == "NCHW"
        shape = [3, *whole] if channels_first else [*whole, 3]
        picture = canvas(shape)
        rows = picture.transpose(1, 2, 0) if channels_first else picture
        scale = np.float32(1 / 255) if options.type == "FP32" else np.uint8(1)
        if options.letterbox:
            rows[:] = _BARS * scale
        part = rows[top : top + height, left : left + width]
        if options.type == "FP32":
            np.multiply(scaled, scale, out=part)
        else:
            part[:] = scaled
        return shape, [width / frame.width, height / frame.height, left, top]

    def _reformat(
        self, reformatter: Any, frame: Any, width: int, height: int, pixels: str, interpolation: str
    ) -> np.ndarray:
        made = reformatter.reformat(frame, width, height, pixels, interpolation=interpolation, **self._alone)
        array: np.ndarray = made.to_ndarray()
        return array

    def _place(self, source_width: int, source_height: int) -> Tuple[int, int, int, int]:
        """Width, height, left and top of the source's picture within the tensor's."""
        width, height = self._options.width, self._options.height
        if not (width and height):
            # One side alone keeps the proportions.
            scale = width / source_width if width else height / source_height if height else 1.0
            width, height = max(round(source_width * scale), 1), max(round(source_height * scale), 1)
            if width * height > self._options.max_pixels:
                raise Refusal(
                    f"a frame of {source_width}x{source_height} would become a picture of {width}x{height}, which is "
                    f"more pixels than the {self._options.max_pixels} of the parameter 'max_pixels'"
                )
            return width, height, 0, 0
        if not self._options.letterbox:
            return width, height, 0, 0
        scale = min(width / source_width, height / source_height)
        inner_width, inner_height = max(round(source_width * scale), 1), max(round(source_height * scale), 1)
        return inner_width, inner_height, (width - inner_width) // 2, (height - inner_height) // 2

    def moves(self, frame: Any) -> bool:
        """Whether enough of the frame differs from the last one that was `seen`."""
        if not self._options.motion:
            return True
        width, height = _SMALL
        self._now = self._reformat(self._shrinker, frame, width, height, "gray", "AREA").astype(np.int16)
        if self._before is None:
            return True
        changed = np.count_nonzero(np.abs(self._now - self._before) > _CHANGED)
        return bool(100 * changed >= self._options.motion * self._now.size)

    def seen(self) -> None:
        """The frame of the last `moves` is what later ones are compared with."""
        self._before = self._now
