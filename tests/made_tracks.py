"""Made scenes: objects that cross a picture and each other, and what an imperfect detector sees of them.

An object is missed now and then, seen with less certainty when another one is in front of it, and not at all where it
is nearly covered. Boxes are noisy, and some detections are of nothing. A seed makes the same scene everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 1280, 720

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Frame:
    """Detections in one frame: `boxes` [n, 4], `scores` [n], `classes` [n]. `objects` [n] are the true ones, or 0."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    objects: np.ndarray


def scene(seed: int, objects: int = 8, frames: int = 150) -> Sequence[Frame]:
    dice = random.Random(seed)
    paths = [
        (
            (dice.uniform(0, WIDTH), dice.uniform(-6, 6), WIDTH, dice.uniform(40, 90)),
            (dice.uniform(0, HEIGHT), dice.uniform(-6, 6), HEIGHT, dice.uniform(60, 160)),
        )
        for _ in range(objects)
    ]
    return [_frame(dice, [_box(path, step) for path in paths]) for step in range(frames)]


def _box(path: Sequence[tuple[float, float, float, float]], step: int) -> Box:
    """Where an object is that turns round at the edges."""
    (x, width), (y, height) = (
        (abs((start + step * speed + end) % (2 * end) - end), size) for start, speed, end, size in path
    )
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _frame(dice: random.Random, true: Sequence[Box]) -> Frame:
    """An object with a higher number is in front of the others."""
    found: list[tuple[Sequence[float], float, int]] = []
    for number, box in enumerate(true):
        covered = max([_covered(box, other) for other in true[number + 1 :]], default=0.0)
        if covered <= 0.7 and dice.random() > 0.04:
            score = min(max(dice.gauss(0.9, 0.04) - 0.6 * covered, 0.15), 0.99)
            found.append(([edge + dice.gauss(0, 1.5) for edge in box], score, number + 1))
    for _ in range(2):
        if dice.random() < 0.15:
            x, y = dice.uniform(0, WIDTH), dice.uniform(0, HEIGHT)
            box = (x, y, x + dice.uniform(30, 120), y + dice.uniform(30, 120))
            found.append((box, dice.uniform(0.1, 0.8), 0))
    dice.shuffle(found)
    boxes, scores, objects = zip(*found, strict=True) if found else ((), (), ())
    return Frame(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array([number % 3 for number in objects], np.int64),
        np.array(objects, np.int64),
    )


def _covered(box: Box, other: Box) -> float:
    """The part of a box that another one covers."""
    width = max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
    height = max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
    return width * height / ((box[2] - box[0]) * (box[3] - box[1]))


def switches(frames: Sequence[Frame], identities: Sequence[Sequence[int]]) -> int:
    """How often an object changes its identity. `identities` has one of each detection of each frame, 0 for none."""
    last: dict[int, int] = {}
    count = 0
    for frame, named in zip(frames, identities, strict=True):
        for of, identity in zip(frame.objects.tolist(), named, strict=True):
            if of and identity:
                count += last.get(of, identity) != identity
                last[of] = identity
    return count
