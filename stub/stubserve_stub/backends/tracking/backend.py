"""The backend's functions: a frame's detections come in, and the tracks that it shows go out.

A camera is a sequence. The server keeps its tracks, gives their bytes with each request, and takes the new ones back
(`card.server_keeps_states`). So an instance remembers nothing between two requests: it may be killed, and another one
may get the next request.
"""

from __future__ import annotations

import importlib
import json
from typing import Any, Dict, List, Sequence

import numpy as np

from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.loading import import_package, refuse_gpu
from stubserve_stub.backends.native import NativeBackend, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.backends.tracking import options
from stubserve_stub.backends.tracking.tracks import Tracks
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes


class TrackingBackend(NativeBackend):
    completes_config = True
    serves_after_completion = True
    writes_inputs = False
    gets_states = True
    _options: options.TrackerOptions

    def model_initialize(self, model: ModelFiles) -> None:
        import_package("scipy", "tracking")
        self._assign = importlib.import_module("scipy.optimize").linear_sum_assignment

    def complete_config(self, model: str, config_json: str) -> str:
        config: Dict[str, Any] = json.loads(config_json)
        options.complete(config)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        refuse_gpu(instance, "tracking")
        options.validate(self.config)
        self._options = options.options_of(self.config)

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        responses = []
        for request in requests:
            try:
                responses.append(NativeResponse(self._outputs(request)))
            except Refusal as refusal:
                responses.append(NativeResponse(error=str(refusal), code=refusal.code))
        return responses

    def _outputs(self, request: NativeRequest) -> Sequence[NativeOutput]:
        """Raises Refusal for detections that make no sense."""
        boxes = self._boxes(request)
        scores = self._column(request, options.SCORES, np.ones(len(boxes), np.float32))
        classes = self._column(request, options.CLASSES, np.zeros(len(boxes), np.int64))
        self._refuse(options.SCORES, scores, np.isfinite(scores), "which is no finite number")
        state = request.inputs.get(options.STATE_INPUT)
        if state is None:
            tracks = Tracks(self._options, self._assign)
        else:
            tracks = Tracks.read(self._options, self._assign, state.memory)
        seen = tracks.update(boxes, scores)
        made = {
            options.TRACK_BOXES: boxes[seen.detections],
            options.TRACK_IDS: seen.identities,
            options.TRACK_CLASSES: classes[seen.detections],
            options.TRACK_SCORES: scores[seen.detections],
            options.TRACK_AGES: seen.ages,
        }
        outputs = [self._output(name, made[name]) for name in request.outputs if name in made]
        outputs.append(self._output(options.STATE_OUTPUT, np.frombuffer(tracks.state(), np.uint8)))
        return outputs

    def _boxes(self, request: NativeRequest) -> Any:
        view = request.inputs.get(options.BOXES)
        if view is None:
            text = f"a request to model '{self.config['name']}' must have the input '{options.BOXES}'"
            raise Refusal(text, codes.INVALID_ARG)
        count, most = view.shape[-2], self._options.most_detections
        if count > most:
            text = f"has {count} boxes, and the parameter most_detections allows {most}"
            raise Refusal(f"input '{view.name}' of model '{self.config['name']}' {text}", codes.INVALID_ARG)
        boxes = np.frombuffer(view.memory, np.float32).reshape(count, 4)
        self._refuse(view.name, boxes, np.isfinite(boxes).all(axis=1), "which has numbers that are not finite")
        upright = (boxes[:, :2] <= boxes[:, 2:]).all(axis=1)
        self._refuse(view.name, boxes, upright, "which has a negative size: a box is x1, y1, x2, y2")
        return boxes

    def _column(self, request: NativeRequest, name: str, default: Any) -> Any:
        """An input with one number for each box; `default` where a request leaves it out."""
        view = request.inputs.get(name)
        if view is None:
            return default
        if view.shape[-1] != len(default):
            text = f"has {view.shape[-1]} numbers for {len(default)} boxes"
            raise Refusal(f"input '{name}' of model '{self.config['name']}' {text}", codes.INVALID_ARG)
        return np.frombuffer(view.memory, default.dtype)

    def _refuse(self, name: str, values: Any, good: Any, why: str) -> None:
        """Raises Refusal that names the first of `values` that is not `good`."""
        if not good.all():
            index = int(np.argmin(good))
            raise Refusal(
                f"input '{name}' of model '{self.config['name']}': detection {index} is {values[index].tolist()}, "
                f"{why}",
                codes.INVALID_ARG,
            )

    def _output(self, name: str, array: Any) -> NativeOutput:
        shape = [1, *array.shape] if self._batches else list(array.shape)
        return NativeOutput(name, options.DATATYPES[name], shape, np.ascontiguousarray(array))
