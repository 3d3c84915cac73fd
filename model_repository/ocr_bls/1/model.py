"""Text recognition as business logic scripting (BLS): a model that calls other models, in a loop and on conditions.

An ensemble always runs all of its steps, each once. Code can do better: lines are read a few at a time and together
with lines of like length, because a batch is computed as wide as its widest line; nothing is read in a picture without
text; and lines that make no sense are tried again, upside down.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

AT_A_TIME = 6
READABLE, DOUBTFUL = 0.5, 0.9
NARROWEST = 320  # pixels, of the recognition network's input


class Refused(Exception):
    """Another model's error, which the client is told as it stands."""


def call(model, outputs, parameters=None, **inputs):
    """Runs another model on arrays; the arrays that it answers with. Raises Refused."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        parameters=parameters or {},
    )
    response = request.exec()
    if response.has_error():
        raise Refused(response.error())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            try:
                texts, boxes, scores = self.read(image)
            except Refused as refused:
                responses.append(pb_utils.InferenceResponse(error=refused.args[0]))
                continue
            readable = (scores >= READABLE) & (texts != b"")
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("TEXT", texts[readable]),
                        pb_utils.Tensor("BOXES", boxes[readable]),
                        pb_utils.Tensor("SCORES", scores[readable]),
                    ]
                )
            )
        return responses

    def read(self, image):
        picture, pixels = call("ocr_decode", ["PICTURE", "PIXELS"], IMAGE=image)
        (likelihood,) = call("ocr_detection", ["fetch_name_0"], x=pixels)
        lines, widths, boxes = call("ocr_boxes", ["LINES", "WIDTHS", "BOXES"], PICTURE=picture, LIKELIHOOD=likelihood)
        if not widths.any():
            return np.empty(0, np.object_), boxes[:0], np.empty(0, np.float32)
        texts, scores = self.recognize(lines, widths, boxes)

        doubtful = np.flatnonzero(scores < DOUBTFUL)
        if len(doubtful):
            turned = lines[doubtful]
            for line, width in zip(turned, widths[doubtful], strict=True):
                line[:, :, :width] = line[:, ::-1, width - 1 :: -1].copy()
            texts_turned, scores_turned = self.recognize(turned, widths[doubtful], boxes[doubtful])
            better = scores_turned > scores[doubtful]
            texts[doubtful[better]], scores[doubtful[better]] = texts_turned[better], scores_turned[better]
        return texts, boxes, scores

    def recognize(self, lines, widths, boxes):
        """The texts and confidences of lines, read in batches of like length."""
        texts, scores = np.empty(len(lines), np.object_), np.empty(len(lines), np.float32)
        by_width = np.argsort(widths, kind="stable")
        for start in range(0, len(by_width), AT_A_TIME):
            some = by_width[start : start + AT_A_TIME]
            width = max(NARROWEST, widths[some].max())
            (characters,) = call("ocr_recognition", ["fetch_name_0"], x=lines[some, :, :, :width])
            # The parameter asks for lines of any confidence.
            texts[some], scores[some] = call(
                "ocr_text", ["TEXT", "SCORES"], {"least_score": 0}, CHARACTERS=characters, BOXES=boxes[some]
            )
        return texts, scores
