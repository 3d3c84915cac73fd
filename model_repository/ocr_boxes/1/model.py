"""From the detection network's likelihoods to lines of text: where they are, and their pixels laid straight.

The network draws each line thinner than it is, so that lines which touch are kept apart. What is found is grown back by
the amount that it was shrunk by in training (Liao et al., "Real-time Scene Text Detection with Differentiable
Binarization", 2020).
"""

import math

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils

LIKELY, SURE = 0.3, 0.5  # of a pixel; of a box on the whole
GROWTH = 1.6
SMALLEST = 5  # pixels, below which nothing can be read
SAME_ROW = 10  # pixels by which boxes beside each other may differ in height
HEIGHT, NARROWEST = 48, 320  # of the recognition network's input


class TritonPythonModel:
    def execute(self, requests):
        return [self.find(request) for request in requests]

    def find(self, request):
        picture = pb_utils.get_input_tensor_by_name(request, "PICTURE").as_numpy()
        likelihood = pb_utils.get_input_tensor_by_name(request, "LIKELIHOOD").as_numpy()[0, 0]
        boxes = in_reading_order(boxes_of(likelihood, picture.shape))
        lines = [line_of(picture, box) for box in boxes]

        widths = [line.shape[1] for line in lines]
        pixels = np.zeros((max(len(lines), 1), 3, HEIGHT, max([NARROWEST, *widths])), np.float32)
        for row, line in zip(pixels, lines, strict=False):
            row[:, :, : line.shape[1]] = (line.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LINES", pixels),
                pb_utils.Tensor("WIDTHS", np.array(widths or [0], np.int32)),
                pb_utils.Tensor("BOXES", np.array(boxes or np.zeros((1, 4, 2)), np.float32)),
            ]
        )


def boxes_of(likelihood, picture_shape):
    """The boxes of text, each as four corners [x, y] in the picture: top left, top right, bottom right, bottom left."""
    scale = np.array([picture_shape[1] / likelihood.shape[1], picture_shape[0] / likelihood.shape[0]])
    farthest = np.array([picture_shape[1] - 1, picture_shape[0] - 1])
    likely = cv2.dilate((likelihood > LIKELY).astype(np.uint8), np.ones((2, 2), np.uint8))
    contours, _ = cv2.findContours(likely, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in contours:
        center, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < SMALLEST - 2 or sureness(likelihood, (center, (width, height), angle)) < SURE:
            continue
        more = 2 * GROWTH * (width * height) / (2 * (width + height))
        corners = cv2.boxPoints((center, (width + more, height + more), angle)) * scale
        box = np.clip(np.round(clockwise(corners)), 0, farthest).astype(np.float32)
        if min(np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[0] - box[3])) > SMALLEST - 2:
            boxes.append(box)
    return boxes


def sureness(likelihood, box):
    """The mean likelihood within a box."""
    corners = cv2.boxPoints(box)
    low = np.maximum(np.floor(corners.min(0)).astype(int), 0)
    high = np.ceil(corners.max(0)).astype(int) + 1
    part = likelihood[low[1] : high[1], low[0] : high[0]]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return cv2.mean(part, mask)[0]


def clockwise(corners):
    """The corners from the top left one on."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    (top_left, bottom_left), (top_right, bottom_right) = (side[np.argsort(side[:, 1])] for side in (left, right))
    return np.array([top_left, top_right, bottom_right, bottom_left])


def in_reading_order(boxes):
    """Rows from top to bottom, and in a row from left to right."""
    rows = []
    for box in sorted(boxes, key=lambda box: box[0, 1]):
        if rows and box[0, 1] - rows[-1][-1][0, 1] < SAME_ROW:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row, key=lambda box: box[0, 0])]


def line_of(picture, box):
    """What is in a box, laid straight and scaled to the height that the recognition network takes."""
    width = int(max(np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[2] - box[3])))
    height = int(max(np.linalg.norm(box[0] - box[3]), np.linalg.norm(box[1] - box[2])))
    straight = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    turn = cv2.getPerspectiveTransform(box, straight)
    line = cv2.warpPerspective(picture, turn, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    if height >= 1.5 * width:  # text that runs from bottom to top
        line = np.rot90(line)
    return cv2.resize(line, (math.ceil(HEIGHT * line.shape[1] / line.shape[0]), HEIGHT))
