from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card, Parameter

CARDS = (
    Card(
        "tracking",
        "stubserve_stub.backends.tracking.backend:TrackingBackend",
        in_environments=True,
        devices=ON_CPUS,
        server_keeps_states=True,
        package="scipy",
        extra="tracking",
        checks_config="stubserve_stub.backends.tracking.options:check",
        parameters=(
            Parameter(
                "track_activation_threshold", "0 to 1", "Score from which on a detection may begin a track (0.7)."
            ),
            Parameter("high_conf_det_threshold", "0 to 1", "Score from which on detections are matched first (0.6)."),
            Parameter(
                "minimum_iou_threshold", "0 to 1", "How much the expected and the seen box have to overlap (0.1)."
            ),
            Parameter(
                "minimum_consecutive_frames",
                "integer",
                "Frames in a row in which an object is seen before it has an identity (2).",
            ),
            Parameter(
                "lost_track_buffer",
                "integer",
                "Frames, at 30 a second, for which an object may be lost and keep its identity (30).",
            ),
            Parameter("frame_rate", "number", "The camera's frames a second (30)."),
            Parameter(
                "most_tracks",
                "integer",
                "Tracks of a camera; those that are lost for longest are given up first (300).",
            ),
            Parameter("most_detections", "integer", "Boxes in a frame; a frame with more is refused (300)."),
        ),
    ),
)
