"""What a configuration says to the video backend: its parameters, its inputs and outputs.

The server checks a configuration with this module as well, so nothing here imports PyAV.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple

from stubserve_stub.backends.loading import Parameters, TensorInfo, compare, cores
from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

SOURCE, VIDEO = "SOURCE", "VIDEO"
FRAME, TIME, RECEIVED, NUMBER, GAP, FIT, EVENT = OUTPUTS = (
    "FRAME", "TIME", "RECEIVED", "NUMBER", "GAP", "FIT", "EVENT"
)  # fmt: skip

_DEFAULTS = {
    "rate": "0",
    "motion": "0",
    "max_age_ms": "1000",
    "stall_ms": "10000",
    "reconnect_ms": "60000",
    "streams": "4",
    "max_pixels": str(4096 * 2304),
    "max_memory_mb": "768",
    "networks": "public",
    "model_input": "FRAME",
}
_CHOICES = {
    "layout": ("NHWC", "NCHW"),
    "color": ("RGB", "BGR"),
    "type": ("UINT8", "FP32"),
    "rtsp": ("", "tcp", "udp"),
}
_OTHERS = ("key_frames", "width", "height", "letterbox", "threads", "files", "model", "model_batched")
NAMES = frozenset((*_DEFAULTS, *_CHOICES, *_OTHERS))


class VideoOptions(NamedTuple):
    """The parameters of one model. 0 stands for no limit, and for the source's own size."""

    # Frames a second, all for 0; the least share of a picture that has to have changed, in percent
    rate: float
    key_frames: bool
    motion: float
    # The picture
    width: int
    height: int
    letterbox: bool
    layout: str
    color: str
    type: str
    # A live source
    max_age_s: float
    stall_s: float
    reconnect_s: float
    # Limits. `threads` are those of one stream's decoder, and the memory is that of one source.
    streams: int
    threads: int
    max_pixels: int
    max_memory_mb: int
    # What an address may be. `files` is a folder, `rtsp` the transport; where they are empty there is neither.
    networks: Networks
    files: str
    rtsp: str
    # The model that gets each frame, empty for none; its input, and whether that has a dimension for the batch
    model: str
    model_input: str
    model_batched: bool


def options_of(config: Mapping[str, Any]) -> VideoOptions:
    """Raises Refusal for parameters that mean nothing."""
    given = Parameters("video", config, {})
    for name in config.get("parameters", {}):
        # Parameters of the server are in capitals.
        if name.islower() and name not in NAMES:
            raise Refusal(f"{given.called(name)} is none of the video backend, which has {', '.join(sorted(NAMES))}")
    options = VideoOptions(
        rate=_decimal(given, "rate"),
        key_frames=bool(given.boolean("key_frames")),
        motion=_decimal(given, "motion"),
        width=given.integer("width"),
        height=given.integer("height"),
        letterbox=bool(given.boolean("letterbox")),
        layout=_choice(given, "layout"),
        color=_choice(given, "color"),
        type=_choice(given, "type"),
        max_age_s=_decimal(given, "max_age_ms") / 1000,
        stall_s=_decimal(given, "stall_ms") / 1000,
        reconnect_s=_decimal(given, "reconnect_ms") / 1000,
        streams=_number(given, "streams"),
        threads=given.integer("threads"),
        max_pixels=_number(given, "max_pixels"),
        max_memory_mb=_number(given, "max_memory_mb"),
        networks=Networks(given.text("networks") or _DEFAULTS["networks"], given.called("networks")),
        files=given.text("files"),
        rtsp=_choice(given, "rtsp"),
        model=given.text("model"),
        model_input=given.text("model_input") or _DEFAULTS["model_input"],
        model_batched=bool(given.boolean("model_batched")),
    )
    for name in ("streams", "max_pixels", "max_memory_mb", "stall_ms"):
        if not getattr(options, name.replace("_ms", "_s")):
            raise Refusal(f"{given.called(name)} must be more than 0")
    if options.letterbox and not (options.width and options.height):
        raise Refusal(f"{given.called('letterbox')} needs 'width' and 'height' besides")
    if options.width * options.height > options.max_pixels:
        raise Refusal(
            f"{given.called('width')}: a picture of {options.width}x{options.height} has more pixels than "
            f"'max_pixels' allows, which is {options.max_pixels}"
        )
    return options


def threads_of(options: VideoOptions, environ: Mapping[str, str]) -> int:
    """The threads of each decoder: those of the configuration, or an equal part of the instance's cores."""
    if options.threads:
        return options.threads
    return max(cores(environ) // options.streams, 1)


_INPUTS = [TensorInfo(SOURCE, BY_NAME["BYTES"].number, [1]), TensorInfo(VIDEO, BY_NAME["UINT8"].number, [-1])]


def _outputs_of(options: VideoOptions) -> List[TensorInfo]:
    height, width = options.height or -1, options.width or -1
    kinds = {
        FRAME: (options.type, [3, height, width] if options.layout == "NCHW" else [height, width, 3]),
        TIME: ("FP64", [1]),
        RECEIVED: ("INT64", [1]),
        NUMBER: ("INT64", [1]),
        GAP: ("INT64", [4]),
        FIT: ("FP32", [4]),
        EVENT: ("BYTES", [2]),
    }
    return [TensorInfo(name, BY_NAME[datatype].number, dims) for name, (datatype, dims) in kinds.items()]


def complete(config: Dict[str, Any]) -> None:
    """Fills in inputs, outputs and the decoupled policy where the configuration has none. Raises Refusal.

    Where frames go to another model, the configuration has that model's outputs, and ours are added.
    """
    options = options_of(config)
    config["input"] = config.get("input") or [{**info.described(), "optional": True} for info in _INPUTS]
    outputs = config.get("output") or []
    missing = _outputs_of(options)
    if options.model:
        named = {FRAME, *(output["name"] for output in outputs)}
        missing = [info for info in missing if info.name not in named]
    if options.model or not outputs:
        outputs = [*outputs, *(info.described() for info in missing)]
    config["output"] = outputs
    config.setdefault("model_transaction_policy", {}).setdefault("decoupled", True)


def validate(config: Mapping[str, Any]) -> None:
    """Raises Refusal for parameters, inputs and outputs that are not the backend's."""
    if config.get("max_batch_size"):
        raise Refusal(
            f"model '{config['name']}': the video backend answers each request by a stream of its own: max_batch_size "
            f"must be 0, got {config['max_batch_size']}"
        )
    options = options_of(config)
    for what, known in (("input", _INPUTS), ("output", _outputs_of(options))):
        infos = {info.name: info for info in known}
        for tensor in config.get(what, ()):
            info = infos.get(tensor["name"])
            if info is None:
                if options.model and what == "output":
                    continue  # one of the other model's
                raise Refusal(
                    f"model '{config['name']}': the video backend has no {what} '{tensor['name']}', it has "
                    f"{', '.join(infos)}"
                )
            compare(config, what, tensor, info)


def _number(given: Parameters, name: str) -> int:
    return given.integer(name) if given.text(name) else int(_DEFAULTS[name])


def _decimal(given: Parameters, name: str) -> float:
    text = given.text(name) or _DEFAULTS[name]
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise Refusal(f"{given.called(name)} must be a number from 0 on, got '{text}'")
    return number


def _choice(given: Parameters, name: str) -> str:
    choices = _CHOICES[name]
    text = given.text(name) or choices[0]
    if text not in choices:
        raise Refusal(f"{given.called(name)} must be {' or '.join(filter(None, choices))}, got '{text}'")
    return text
