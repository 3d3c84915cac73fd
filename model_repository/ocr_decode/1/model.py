"""From a PNG or JPEG file to pixels, and to what the detection network takes."""

import io

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

# The network finds small print where the shorter side has as many pixels; its memory grows with the longer one.
SHORTER_SIDE, LONGER_SIDE = 736, 2000
MULTIPLE = 32


def refusal(reason):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))


class TritonPythonModel:
    def execute(self, requests):
        return [self.decode(request) for request in requests]

    def decode(self, request):
        data = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()[0]
        try:
            picture = np.asarray(Image.open(io.BytesIO(data), formats=["PNG", "JPEG"]).convert("RGB"))
        except UnidentifiedImageError:
            return refusal(f"IMAGE is not a PNG or JPEG file: it starts with {data[:8]!r}")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            return refusal(f"IMAGE cannot be decoded: {error}")
        # The networks were trained with blue first.
        picture = np.ascontiguousarray(picture[:, :, ::-1])
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("PICTURE", picture), pb_utils.Tensor("PIXELS", self.pixels(picture))]
        )

    def pixels(self, picture):
        """The picture as [1, 3, height, width] from -1 to 1, in a size that suits the network."""
        height, width = picture.shape[:2]
        scale = max(1.0, SHORTER_SIDE / min(height, width))
        scale = min(scale, LONGER_SIDE / max(height, width))
        size = [max(MULTIPLE, round(int(side * scale) / MULTIPLE) * MULTIPLE) for side in (width, height)]
        resized = cv2.resize(picture, size).astype(np.float32)
        return np.ascontiguousarray((resized / 127.5 - 1.0).transpose(2, 0, 1)[np.newaxis])
