"""Finds faces with CenterFace, a network that says for every fourth pixel whether it is the middle of a face."""

import math
import os

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

# The picture is made as wide as this for the network, which takes multiples of 32 and answers for every fourth pixel.
WIDTH, MULTIPLE, STEP = 384, 32, 4
# What the network is less sure of is left out. Of two boxes that overlap by more, the better one stays.
SURE, OVERLAP = 0.35, 0.3
# How likely a middle is, the logarithm of the size, what the middle is off by, and eyes, nose and mouth
OUTPUTS = ("537", "538", "539", "540")


class TritonPythonModel:
    def initialize(self, args):
        cv2.setNumThreads(1)
        file = os.path.join(args["model_repository"], args["model_version"], "centerface.onnx")
        self.network = cv2.dnn.readNetFromONNX(file)

    def execute(self, requests):
        responses = []
        for request in requests:
            boxes, scores = self.faces(pb_utils.get_input_tensor_by_name(request, "FRAME").as_numpy())
            outputs = [pb_utils.Tensor("BOXES", boxes), pb_utils.Tensor("SCORES", scores)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def faces(self, frame):
        height, width = frame.shape[:2]
        size = (WIDTH, math.ceil(height * WIDTH / width / MULTIPLE) * MULTIPLE)
        self.network.setInput(cv2.dnn.blobFromImage(frame, size=size))
        likely, sizes, off, _ = (output[0] for output in self.network.forward(OUTPUTS))
        rows, columns = np.nonzero(likely[0] > SURE)
        scores = likely[0, rows, columns]
        # In pixels of what the network has seen
        tall, wide = STEP * np.exp(sizes[:, rows, columns])
        y, x = STEP * (np.stack([rows, columns]) + off[:, rows, columns] + 0.5)
        boxes = np.stack([x - wide / 2, y - tall / 2, wide, tall], 1)
        best = np.array(cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), SURE, OVERLAP), np.int64).reshape(-1)
        boxes, scores = boxes[best], scores[best]
        boxes[:, 2:] += boxes[:, :2]
        boxes *= [width / size[0], height / size[1]] * 2
        return boxes.clip(0, [width, height] * 2).astype(np.float32), scores.astype(np.float32)
