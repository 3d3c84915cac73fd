from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card, Parameter

CARDS = (
    Card(
        "video",
        "stubserve_stub.backends.video.backend:VideoBackend",
        in_environments=True,
        devices=ON_CPUS,
        package="av",
        extra="video",
        checks_config="stubserve_stub.backends.video.options:validate",
        parameters=(
            Parameter("rate", "number", "Frames in a second of the source's time stamps, at most (all)."),
            Parameter("key_frames", "0 or 1", "Whether only key frames are decoded (0)."),
            Parameter(
                "motion",
                "percent",
                "The part of the picture that has to have changed since the last frame that was sent (0).",
            ),
            Parameter("width", "pixels", "Width of the picture (the source's)."),
            Parameter("height", "pixels", "Height of the picture (the source's)."),
            Parameter("letterbox", "0 or 1", "Whether the proportions are kept, with grey bars (0)."),
            Parameter("layout", "NHWC or NCHW", "Order of the dimensions (NHWC)."),
            Parameter("color", "RGB or BGR", "Order of the colours (RGB)."),
            Parameter("type", "UINT8 or FP32", "Type of FRAME; FP32 is from 0 to 1 (UINT8)."),
            Parameter(
                "max_age_ms", "milliseconds", "Frames of a live source that are older are dropped; 0 for none (1000)."
            ),
            Parameter(
                "stall_ms",
                "milliseconds",
                "Time without a frame that can be decoded after which a source has stalled (10000).",
            ),
            Parameter(
                "reconnect_ms", "milliseconds", "Time for which a live source that breaks off is opened again (60000)."
            ),
            Parameter("streams", "integer", "Streams at the same time in an instance (4)."),
            Parameter("threads", "integer", "Threads of each decoder (the instance's cores, divided by the streams)."),
            Parameter("max_memory_mb", "MB", "Memory of the process that reads one source (768)."),
            Parameter("max_pixels", "pixels", "The largest frames and pictures (9437184)."),
            Parameter(
                "networks",
                "names and networks",
                "Where sources may be: public, private, loopback, 192.168.7.0/24, with blanks (public).",
            ),
            Parameter("files", "folder", "The folder of file: sources (no files)."),
            Parameter("rtsp", "tcp or udp", "The transport of RTSP (no RTSP)."),
            Parameter("model", "text", "The model that gets each frame (none)."),
            Parameter("model_input", "text", "The input of that model (FRAME)."),
            Parameter("model_batched", "0 or 1", "Whether that model batches (0)."),
        ),
    ),
)
