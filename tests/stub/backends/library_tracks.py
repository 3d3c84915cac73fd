"""What the package `trackers` makes of the made scenes, once recorded: `python -m tests.stub.backends.library_tracks`.

That package needs OpenCV for its windows, which takes the place of the one without them that the examples need. So the
tests read the record, and ask the package itself only where somebody has installed it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from stubserve_stub.backends.tracking.options import TrackerOptions

from tests.made_tracks import Frame, scene

RECORD = Path(__file__).with_suffix(".json")
# By name: the seed and the number of objects of a scene, and options
SCENES: dict[str, tuple[int, int, TrackerOptions]] = {
    "usual": (1, 8, TrackerOptions()),
    "crowded": (2, 25, TrackerOptions()),
    "patient": (3, 8, TrackerOptions(minimum_consecutive_frames=4, lost_track_buffer=60, frame_rate=60.0)),
    "forgetful": (4, 8, TrackerOptions(lost_track_buffer=0)),
    "immediate": (5, 8, TrackerOptions(minimum_consecutive_frames=1, frame_rate=10.0)),
    "trusting": (6, 12, TrackerOptions(0.3, 0.8, 0.3)),
}


def frames_of(name: str) -> tuple[Sequence[Frame], TrackerOptions]:
    seed, objects, options = SCENES[name]
    return scene(seed, objects), options


def by_library(frames: Sequence[Frame], options: TrackerOptions) -> list[list[int]]:
    """The identity of each detection of each frame, from 1 on; 0 for none."""
    import supervision
    from trackers import ByteTrackTracker

    tracker = ByteTrackTracker(
        lost_track_buffer=options.lost_track_buffer,
        frame_rate=options.frame_rate,
        track_activation_threshold=options.track_activation_threshold,
        minimum_consecutive_frames=options.minimum_consecutive_frames,
        minimum_iou_threshold=options.minimum_iou_threshold,
        high_conf_det_threshold=options.high_conf_det_threshold,
    )
    found = []
    for frame in frames:
        # Detections come back in another order; their indices travel as their classes.
        indices = np.arange(len(frame.boxes))
        detections = supervision.Detections(xyxy=frame.boxes, confidence=frame.scores, class_id=indices)
        tracked = tracker.update(detections)
        identities = np.zeros(len(frame.boxes), int)
        if len(tracked):
            identities[tracked.class_id] = tracked.tracker_id + 1
        found.append(identities.tolist())
    return found


if __name__ == "__main__":
    recorded = {name: by_library(*frames_of(name)) for name in SCENES}
    RECORD.write_text(json.dumps(recorded, separators=(",", ":")).replace("]],", "]],\n") + "\n")
