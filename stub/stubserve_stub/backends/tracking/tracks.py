"""ByteTrack: the tracks of one camera, and the bytes in which they outlive their process.

**The method.** A Kalman filter of constant velocity predicts each track's box. Confident detections are matched with
all tracks, by the assignment with the greatest sum of overlaps (IoU); then what is left of the tracks is matched with
the detections of low score, which keeps an object that is half hidden. A confident detection without a track begins
one. A track has an identity once it has been seen in enough frames in a row, and keeps it while it is lost, until it
has been lost for too long. Identities count from 1 and are never used again.

All of this, the noise of the filter and the defaults are those of `ByteTrackTracker` in the package `trackers`, and
`tests/stub/backends/test_tracking.py` compares the two. There a track is an object with matrices of 8 by 8. But the
coordinates of a box are independent of each other, and their variances only depend on when a track was seen. So three
numbers of a track say what its matrix says, and all tracks are rows of two arrays.

**The bytes.** They are data, never code: a header and these two arrays, little-endian::

    version (uint32) | rows (uint32) | the last identity (int64) | rows * 11 float64 | rows * 4 int64

`read` refuses bytes of another length or version. A track has 120 bytes, and the parameter `most_tracks` bounds how
many there are.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, NamedTuple, Tuple

import numpy as np

from stubserve_stub.backends.tracking.options import TrackerOptions
from stubserve_stub.runtime.failure import Refusal

# scipy.optimize.linear_sum_assignment
Assign = Callable[..., Tuple[Any, Any]]

VERSION = 1
_HEAD = struct.Struct("<IIq")

# Columns of floats: the box (x1, y1, x2, y2), its velocity per frame, then what is equal for the four coordinates: the
# variance of a coordinate, its covariance with the velocity, and the variance of the velocity.
_BOX, _VELOCITY = slice(0, 4), slice(4, 8)
_VARIANCE, _COVARIANCE, _VELOCITY_VARIANCE = 8, 9, 10
_FLOATS = 11
# Columns of numbers: the identity, 0 for none yet; the frames since the track began, and since it was last seen; in how
# many frames in a row it was seen up to then.
_IDENTITY, _AGE, _MISSED, _HITS = range(4)
_NUMBERS = 4

_BYTES_EACH = (_FLOATS + _NUMBERS) * 8

_MEASUREMENT_NOISE, _PROCESS_NOISE = 0.1, 0.01


class Seen(NamedTuple):
    """The tracks with an identity that a frame shows. `detections` are the indices of their detections.

    `ages` are the frames since a track was first seen.
    """

    detections: Any
    identities: Any
    ages: Any


class Tracks:
    """The tracks of one camera. `assign` solves the assignment problem, as scipy's function does."""

    def __init__(self, options: TrackerOptions, assign: Assign) -> None:
        self._options = options
        self._assign = assign
        self._last_identity = 0
        self._floats: Any = np.empty((0, _FLOATS))
        self._numbers: Any = np.empty((0, _NUMBERS), np.int64)

    @classmethod
    def read(cls, options: TrackerOptions, assign: Assign, state: Any) -> "Tracks":
        """The tracks in bytes that `state` was made as. Raises Refusal for other bytes."""
        tracks = cls(options, assign)
        if len(state) < _HEAD.size:
            raise Refusal(f"the state of the tracks has {len(state)} bytes, which is no header")
        version, rows, last = _HEAD.unpack(bytes(state[: _HEAD.size]))
        if version != VERSION:
            raise Refusal(
                f"the state of the tracks has version {version}, and this server reads version {VERSION}; begin the "
                "sequence anew with the START flag"
            )
        if len(state) != _HEAD.size + rows * _BYTES_EACH:
            raise Refusal(f"the state of {rows} tracks cannot have {len(state)} bytes")
        middle = _HEAD.size + rows * _FLOATS * 8
        tracks._last_identity = last
        # Copies, since the state is the sequence's own until the request has succeeded.
        tracks._floats = np.array(np.frombuffer(state[_HEAD.size : middle], "<f8").reshape(rows, _FLOATS), np.float64)
        tracks._numbers = np.array(np.frombuffer(state[middle:], "<i8").reshape(rows, _NUMBERS), np.int64)
        return tracks

    def state(self) -> bytes:
        floats, numbers = self._floats.astype("<f8", copy=False), self._numbers.astype("<i8", copy=False)
        return b"".join([_HEAD.pack(VERSION, len(floats), self._last_identity), floats.tobytes(), numbers.tobytes()])

    def __len__(self) -> int:
        return len(self._floats)

    def update(self, boxes: Any, scores: Any) -> Seen:
        """Takes the detections of one frame: `boxes` [n, 4] as x1, y1, x2, y2, and `scores` [n], all of them finite."""
        options = self._options
        boxes = boxes.astype(np.float64)
        self._predict()
        confident = scores >= options.high_conf_det_threshold
        high, low = np.flatnonzero(confident), np.flatnonzero(~confident)
        everything = np.arange(len(self._floats))
        tracks, found = self._match(everything, boxes, high)
        seen = [(tracks, found)]
        self._correct(tracks, found, boxes)
        if len(low) and len(tracks) < len(everything):
            lost = np.delete(everything, tracks)
            seen.append(self._match(lost, boxes, low))
            self._correct(*seen[1], boxes)
        unmatched = np.setdiff1d(high, found, assume_unique=True)
        known, which = (np.concatenate(parts) for parts in zip(*seen))
        named = self._numbers[known, _IDENTITY] > 0
        answer = Seen(which[named], self._numbers[known[named], _IDENTITY], self._numbers[known[named], _AGE])
        self._keep(self._alive())
        self._begin(unmatched[scores[unmatched] >= options.track_activation_threshold], boxes, scores)
        return answer

    def _predict(self) -> None:
        floats, numbers = self._floats, self._numbers
        floats[:, _BOX] += floats[:, _VELOCITY]
        floats[:, _VARIANCE] += 2 * floats[:, _COVARIANCE] + floats[:, _VELOCITY_VARIANCE] + _PROCESS_NOISE
        floats[:, _COVARIANCE] += floats[:, _VELOCITY_VARIANCE]
        floats[:, _VELOCITY_VARIANCE] += _PROCESS_NOISE
        numbers[numbers[:, _MISSED] > 0, _HITS] = 0
        numbers[:, _MISSED] += 1
        numbers[:, _AGE] += 1

    def _match(self, tracks: Any, boxes: Any, detections: Any) -> Tuple[Any, Any]:
        """Indices of tracks, in order, and of the detections that they are matched with, out of those given."""
        if not len(tracks) or not len(detections):
            return tracks[:0], detections[:0]
        overlaps = _overlaps(self._floats[tracks, _BOX], boxes[detections])
        rows, columns = self._assign(overlaps, maximize=True)
        enough = overlaps[rows, columns] >= self._options.minimum_iou_threshold
        return tracks[rows[enough]], detections[columns[enough]]

    def _correct(self, tracks: Any, found: Any, boxes: Any) -> None:
        """Corrects tracks by the detections that they were matched with, and gives identities."""
        if not len(tracks):
            return
        floats, numbers = self._floats[tracks], self._numbers[tracks]
        variance, covariance = floats[:, _VARIANCE], floats[:, _COVARIANCE]
        gain = variance / (variance + _MEASUREMENT_NOISE)
        velocity_gain = covariance / (variance + _MEASUREMENT_NOISE)
        surprise = boxes[found] - floats[:, _BOX]
        floats[:, _BOX] += gain[:, None] * surprise
        floats[:, _VELOCITY] += velocity_gain[:, None] * surprise
        floats[:, _VELOCITY_VARIANCE] -= velocity_gain * covariance
        floats[:, _COVARIANCE] -= gain * covariance
        floats[:, _VARIANCE] -= gain * variance
        numbers[:, _MISSED] = 0
        numbers[:, _HITS] += 1
        unnamed = (numbers[:, _IDENTITY] == 0) & (numbers[:, _HITS] >= self._options.minimum_consecutive_frames)
        count = int(unnamed.sum())
        numbers[unnamed, _IDENTITY] = np.arange(self._last_identity + 1, self._last_identity + 1 + count)
        self._last_identity += count
        self._floats[tracks], self._numbers[tracks] = floats, numbers

    def _alive(self) -> Any:
        """Which tracks go on: those seen now, and those with an identity that have not been lost for too long."""
        numbers, options = self._numbers, self._options
        mature = (numbers[:, _IDENTITY] > 0) | (numbers[:, _HITS] >= options.minimum_consecutive_frames)
        missed = numbers[:, _MISSED]
        return (missed == 0) | (mature & (missed <= options.most_missed))

    def _begin(self, new: Any, boxes: Any, scores: Any) -> None:
        """Begins a track for each of these detections, as far as there is room.

        The tracks that have been lost for longest make room. If that is not enough, the best detections go first.
        """
        missed = self._numbers[:, _MISSED]
        room = self._options.most_tracks - int((missed == 0).sum())
        if len(new) > room:
            new = np.sort(new[np.argsort(-scores[new], kind="stable")[: max(room, 0)]])
        surplus = len(missed) + len(new) - self._options.most_tracks
        if surplus > 0:
            self._keep(np.sort(np.argsort(-missed, kind="stable")[surplus:]))
        if not len(new):
            return
        floats, numbers = np.zeros((len(new), _FLOATS)), np.zeros((len(new), _NUMBERS), np.int64)
        floats[:, _BOX] = boxes[new]
        floats[:, _VARIANCE] = floats[:, _VELOCITY_VARIANCE] = 1
        numbers[:, _HITS] = 1
        self._floats = np.concatenate([self._floats, floats])
        self._numbers = np.concatenate([self._numbers, numbers])

    def _keep(self, which: Any) -> None:
        self._floats, self._numbers = self._floats[which], self._numbers[which]


def _overlaps(tracks: Any, detections: Any) -> Any:
    """The overlap (IoU) of each track's box with each detection's, float32 [tracks, detections]."""
    # Columns side by side: numpy goes through them twice as fast.
    left, top, right, bottom = np.ascontiguousarray(tracks.T)[:, :, None]
    x1, y1, x2, y2 = np.ascontiguousarray(detections.T)
    both = np.maximum(np.minimum(right, x2) - np.maximum(left, x1), 0)
    both *= np.maximum(np.minimum(bottom, y2) - np.maximum(top, y1), 0)
    either = (right - left) * (bottom - top) + (x2 - x1) * (y2 - y1) - both
    # In single precision, as in `trackers`: overlaps that are equal there are equal here.
    return np.divide(both, either, out=np.zeros(both.shape, np.float32), where=either > 0)
