"""What a configuration says to the tracker: its parameters, its inputs and outputs, and its state.

`complete` fills in what a configuration lacks: inputs, outputs, the sequences, and their state. `validate` compares all
of it. The two optional inputs, and any output, may be left out of a configuration.

Parameters have the names and defaults of `ByteTrackTracker` in the package `trackers`, but for the two that bound the
memory and the time of a frame. Unknown ones, and values that mean nothing, are refused.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from stubserve_stub.backends.loading import Parameters, TensorInfo, compare
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

BOXES, SCORES, CLASSES = "BOXES", "SCORES", "CLASSES"
TRACK_BOXES, TRACK_IDS, TRACK_CLASSES = "TRACK_BOXES", "TRACK_IDS", "TRACK_CLASSES"
TRACK_SCORES, TRACK_AGES = "TRACK_SCORES", "TRACK_AGES"
STATE_INPUT, STATE_OUTPUT = "TRACKS", "NEW_TRACKS"
_FP32, _INT64, _UINT8 = (BY_NAME[name].number for name in ("FP32", "INT64", "UINT8"))

_INPUTS = (TensorInfo(BOXES, _FP32, [-1, 4]), TensorInfo(SCORES, _FP32, [-1]), TensorInfo(CLASSES, _INT64, [-1]))
_OUTPUTS = (
    TensorInfo(TRACK_BOXES, _FP32, [-1, 4]),
    TensorInfo(TRACK_IDS, _INT64, [-1]),
    TensorInfo(TRACK_CLASSES, _INT64, [-1]),
    TensorInfo(TRACK_SCORES, _FP32, [-1]),
    TensorInfo(TRACK_AGES, _INT64, [-1]),
)
# By the name of an output, the state's too
DATATYPES = {**{info.name: info.datatype for info in _OUTPUTS}, STATE_OUTPUT: _UINT8}
_STATE = {"input_name": STATE_INPUT, "output_name": STATE_OUTPUT, "data_type": "TYPE_UINT8", "dims": [-1]}
# A minute without a frame ends a camera's sequence; as many cameras as anybody has share an instance.
_SEQUENCES = {"oldest": {"max_candidate_sequences": 1024}, "max_sequence_idle_microseconds": 60_000_000}


def complete(config: Dict[str, Any]) -> None:
    """Completes `config` (the server's JSON) in place."""
    if not config.get("input"):
        config["input"] = [{**info.described(), "optional": info.name != BOXES} for info in _INPUTS]
    if not config.get("output"):
        config["output"] = [info.described() for info in _OUTPUTS]
    if not config.get("dynamic_batching") and not config.get("sequence_batching"):
        config["sequence_batching"] = dict(_SEQUENCES)
    sequences = config.get("sequence_batching")
    if sequences is not None and not sequences.get("state"):
        sequences["state"] = [dict(_STATE)]


def validate(config: Mapping[str, Any]) -> None:
    """Raises Refusal for the first thing that does not fit."""
    model = config["name"]
    _compare(config, "input", _INPUTS)
    _compare(config, "output", _OUTPUTS)
    for tensor in config["input"]:
        if tensor["name"] == BOXES and tensor.get("optional"):
            raise Refusal(f"model '{model}': input '{BOXES}' of the tracking backend cannot be optional")
    if all(tensor["name"] != BOXES for tensor in config["input"]):
        raise Refusal(f"model '{model}' must have the input '{BOXES}' of the tracking backend")
    states = (config.get("sequence_batching") or {}).get("state") or []
    if [{name: _plain(state.get(name)) for name in _STATE} for state in states] != [_STATE]:
        raise Refusal(
            f"model '{model}': the tracking backend needs sequence_batching with one state, which says input_name: "
            f'"{STATE_INPUT}" output_name: "{STATE_OUTPUT}" data_type: TYPE_UINT8 dims: [ -1 ]; a configuration '
            "without sequence_batching gets it"
        )
    if config["sequence_batching"].get("iterative_sequence"):
        raise Refusal(f"model '{model}': the tracking backend has no use for iterative_sequence")


def check(config: Mapping[str, Any]) -> None:
    """Raises Refusal for a configuration that the backend would not take once it is completed."""
    completed = {"input": [], "output": [], **config}
    complete(completed)
    validate(completed)
    options_of(completed)


def _compare(config: Mapping[str, Any], what: str, infos: Sequence[TensorInfo]) -> None:
    known = {info.name: info for info in infos}
    batches = bool(config.get("max_batch_size"))
    for tensor in config[what]:
        name = tensor["name"]
        if name not in known:
            raise Refusal(
                f"model '{config['name']}': unexpected {what} '{name}', the tracking backend has {', '.join(known)}"
            )
        info = known[name]
        compare(config, what, tensor, info._replace(dims=[-1, *info.dims]) if batches else info)


def _plain(value: Any) -> Any:
    """Dimensions as numbers: the server's JSON has them as texts."""
    if not isinstance(value, list):
        return value
    dims: List[int] = [int(dim) for dim in value]
    return dims


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
    most_tracks: int = 300
    most_detections: int = 300

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
