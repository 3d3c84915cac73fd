"""From likelihoods of characters to text (CTC): the likeliest of each column, repetitions and blanks left out."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

BLANK = 0
LEAST_SCORE = 0.5


class TritonPythonModel:
    def initialize(self, args):
        # Which character has which number is written in the network's file. Nothing is run of it here.
        file = Path(args["model_repository"]) / args["model_version"] / "recognition.onnx"
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        written = session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.alphabet = np.array(["", *written, " "], np.object_)

    def execute(self, requests):
        return [self.read(request) for request in requests]

    def read(self, request):
        likelihood = pb_utils.get_input_tensor_by_name(request, "CHARACTERS").as_numpy()
        boxes = pb_utils.get_input_tensor_by_name(request, "BOXES").as_numpy()
        # A caller may want lines of less confidence, too, and says so with a parameter of its request.
        least = json.loads(request.parameters() or "{}").get("least_score", LEAST_SCORE)

        texts, scores = [], []
        for line in likelihood:
            number = line.argmax(axis=1)
            kept = (number != BLANK) & (np.diff(number, prepend=BLANK) != 0)
            texts.append("".join(self.alphabet[number[kept]]))
            scores.append(line[kept, number[kept]].mean() if kept.any() else 0.0)
        texts, scores = np.array(texts, np.object_), np.array(scores, np.float32)
        readable = (scores >= least) & (texts != "") if least else slice(None)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("TEXT", np.array([text.encode() for text in texts[readable]], np.object_)),
                pb_utils.Tensor("BOXES", boxes[readable]),
                pb_utils.Tensor("SCORES", scores[readable]),
            ]
        )
