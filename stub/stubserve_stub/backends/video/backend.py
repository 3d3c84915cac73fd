"""The video backend: one request follows one source, and each response has a frame of it.

Several streams run in one instance, each on a thread of its own, with a process that decodes its source.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict

from stubserve_stub.api.requests import InferenceRequest, get_input_tensor_by_name
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.loading import import_package, refuse_gpu
from stubserve_stub.backends.python.streaming import Answers, StreamingBackend, StreamingModel
from stubserve_stub.backends.video.options import SOURCE, VIDEO, complete, options_of, threads_of, validate
from stubserve_stub.backends.video.playing import Playing
from stubserve_stub.backends.video.processes import Players
from stubserve_stub.backends.video.source import scheme_of
from stubserve_stub.backends.video.stream import VideoStream
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes


class _Video(StreamingModel):
    def initialize(self, arguments: Dict[str, str]) -> None:
        super().initialize(arguments)
        options = self._options
        # A relative folder is one of the model's.
        files = os.path.join(arguments["model_repository"], options.files) if options.files else ""
        playing = Playing(options, files, threads_of(options, os.environ), self.config["name"])
        self._players = Players(options, playing.play)

    def check(self) -> None:
        validate(self.config)
        self._options = options_of(self.config)
        self.streams = self._options.streams

    def answers(self, request: InferenceRequest) -> Answers:
        given = _given(request)

        def follow(sender: InferenceResponseSender) -> None:
            VideoStream(self._options, self._players, request, sender).follow(given)

        return follow


def _given(request: InferenceRequest) -> Any:
    """The address, or the bytes, of a request. Raises Refusal."""
    source, video = (get_input_tensor_by_name(request, name) for name in (SOURCE, VIDEO))
    if (source is None) == (video is None):
        raise Refusal("a request has either SOURCE, an address, or VIDEO, the bytes of a file", codes.INVALID_ARG)
    if video is not None:
        return video.as_numpy().data
    assert source is not None
    text = source.as_numpy().reshape(-1)
    try:
        (encoded,) = text
        address = encoded.decode()
    except ValueError:  # UnicodeDecodeError is one
        raise Refusal("SOURCE is one address, as UTF-8", codes.INVALID_ARG) from None
    scheme_of(address)
    return address


class VideoBackend(StreamingBackend):
    model_class = _Video
    completes_config = True

    def model_initialize(self, model: ModelFiles) -> None:
        super().model_initialize(model)
        # What FFmpeg remarks about broken frames would fill the log.
        import_package("av", "video").logging.set_level(None)

    def complete_config(self, model: str, config_json: str) -> str:
        config = json.loads(config_json)
        complete(config)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        refuse_gpu(instance, "video")
        super().instance_initialize(instance)
