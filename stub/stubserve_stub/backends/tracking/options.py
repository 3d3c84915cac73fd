"""A model's configuration as options of the tracker. Unknown parameters and values that mean nothing are refused.

The names and defaults are those of `ByteTrackTracker` in the package `trackers`, but for the two that bound the memory
and the time of a frame.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple

from stubserve_stub.backends.loading import Parameters
from stubserve_stub.runtime.failure import Refusal

# The largest number that a parameter may be
_MOST = 100_000


class TrackerOptions(NamedTuple):
    """`most_missed` is for how many frames a track may be lost."""

    track_activation_threshold: float = 0.7
    high_conf_det_threshold: float = 0.6
    minimum_iou_threshold: float = 0.1
    minimum_consecutive_frames: int = 2
    lost_track_buffer: int = 30
    frame_rate: float = 30.0
    most_tracks: int = 1000
    most_detections: int = 1000

    @property
    def most_missed(self) -> int:
        if not self.lost_track_buffer:
            return 0
        return max(1, math.ceil(self.frame_rate / 30.0 * self.lost_track_buffer))


# The smallest value of each whole number
_FROM = {"minimum_consecutive_frames": 1, "lost_track_buffer": 0, "most_tracks": 1, "most_detections": 1}


def options_of(config: Mapping[str, Any]) -> TrackerOptions:
    """The options of a configuration (the server's JSON). Raises Refusal for an invalid value.

    Parameters in capitals are the server's own. Others that the tracker does not have are mistakes.
    """
    reader = Parameters("tracking", config, {})
    found = {}
    for name in config.get("parameters", {}):
        if name in _FROM:
            found[name] = _whole(reader, name, _FROM[name])
        elif name == "frame_rate":
            found[name] = _number(reader, name, 0.001, _MOST)
        elif name in TrackerOptions._fields:
            found[name] = _number(reader, name, 0.0, 1.0)
        elif name != name.upper():
            names = ", ".join(TrackerOptions._fields)
            raise Refusal(f"{reader.called(name)} is none of the tracker's; these are {names}")
    return TrackerOptions(**found)


def _whole(reader: Parameters, name: str, lowest: int) -> Any:
    text = reader.text(name)
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not lowest <= value <= _MOST:
        raise Refusal(f"{reader.called(name)} must be an integer from {lowest} to {_MOST}, got '{text}'")
    return value


def _number(reader: Parameters, name: str, lowest: float, highest: float) -> Any:
    text = reader.text(name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not lowest <= value <= highest:
        raise Refusal(f"{reader.called(name)} must be a number from {lowest:g} to {highest:g}, got '{text}'")
    return value
