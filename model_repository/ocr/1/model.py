"""Text recognition with real models: finds the lines of text in a picture and reads them.

The PyPI package `rapidocr` brings the ONNX networks for detection and recognition in its wheel, so nothing is
downloaded when the model loads. onnxruntime runs them.
"""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageDraw, UnidentifiedImageError
from rapidocr import RapidOCR


def refusal(reason):
    """The answer to a request that is at fault; the other requests are unharmed."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG))


class TritonPythonModel:
    def initialize(self, args):
        """Called once per instance, before the model is ready; `args["model_config"]` is config.pbtxt as JSON."""
        config = json.loads(args["model_config"])
        threads = int(config["parameters"]["threads"]["string_value"])
        self.reader = RapidOCR(
            params={
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                # A third network guesses which lines are upside down. On upright pages it does harm: it turns
                # one line of the sample page, which then reads as nonsense.
                "Global.use_cls": False,
                "Global.log_level": "error",
            }
        )
        # RapidOCR loads each network when it is first needed. Reading a word here means that "ready" is true
        # when the server says it, and that the first client does not pay for the loading.
        sample = Image.new("RGB", (160, 48), "white")
        ImageDraw.Draw(sample).text((40, 18), "warming up", fill="black")
        self.reader(sample)

    def execute(self, requests):
        return [self.read(request) for request in requests]

    def read(self, request):
        # A BYTES tensor arrives as a numpy array of Python `bytes` objects.
        data = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()[0]
        try:
            # Only the two formats promised: image libraries know dozens, and each is code that strangers can reach.
            picture = Image.open(io.BytesIO(data), formats=["PNG", "JPEG"]).convert("RGB")
        except UnidentifiedImageError:
            return refusal(f"IMAGE is not a PNG or JPEG file: it starts with {data[:8]!r}")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            return refusal(f"IMAGE cannot be decoded: {error}")

        found = self.reader(picture)
        if found.txts is None:
            texts, boxes, scores = [], np.empty((0, 4, 2)), []
        else:
            texts, boxes, scores = found.txts, found.boxes, found.scores

        # Text goes back as an object array of UTF-8 bytes; numpy's own string types ("<U9") have no BYTES form.
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("TEXT", np.array([text.encode() for text in texts], dtype=np.object_)),
                pb_utils.Tensor("BOXES", np.asarray(boxes, dtype=np.float32)),
                pb_utils.Tensor("SCORES", np.asarray(scores, dtype=np.float32)),
            ]
        )

    def finalize(self):
        """Called when the model is unloaded or the server stops; optional."""
        self.reader = None
