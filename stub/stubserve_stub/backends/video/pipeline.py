"""The model that gets each frame of a stream, and whose outputs are streamed in the place of the frame.

A model that has never answered is the wrong one. One that has answered may die, be reloaded, or be too busy: then only
the frames of that time are lost.
"""

from __future__ import annotations

import random
import time
from typing import List

import numpy as np

from stubserve_stub.api.constants import REQUEST_FLAG_SEQUENCE_START
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.video.options import VideoOptions
from stubserve_stub.runtime.failure import Refusal

# Correlation ids fit into controls of any integer type.
_MOST = 1 << 31


class Pipeline:
    """The calls of one stream. `wanted` are the outputs that the model is asked for.

    The stream is a sequence, which starts with its first frame: of the request's correlation id, or of one by chance.
    """

    def __init__(self, options: VideoOptions, wanted: List[str], request: InferenceRequest) -> None:
        self._options = options
        self._wanted = wanted
        self._id = request.request_id()
        self._trace = request.trace()
        self._sequence = request.correlation_id() or random.SystemRandom().randrange(1, _MOST)
        self._answered_at = float("-inf")
        self._flags = REQUEST_FLAG_SEQUENCE_START

    def answers(self, picture: np.ndarray) -> List[List[Tensor]]:
        """The outputs of each response of the model. Raises Refusal if it fails."""
        options = self._options
        call = InferenceRequest(
            request_id=self._id,
            correlation_id=self._sequence,
            inputs=[Tensor(options.model_input, picture[np.newaxis] if options.model_batched else picture)],
            requested_output_names=self._wanted,
            model_name=options.model,
            flags=self._flags,
            trace=self._trace,
        )
        found = []
        for response in call.exec(decoupled=True):
            error = response.error()
            if error is not None:
                raise Refusal(f"model '{options.model}': {error.message()}", int(error.code()))
            self._flags, self._answered_at = 0, time.monotonic()
            tensors = response.output_tensors()
            if tensors:
                found.append([self._single(tensor) for tensor in tensors])
        return found

    @property
    def may_recover(self) -> bool:
        """Whether a later frame may fare better than one for which it has failed."""
        return time.monotonic() - self._answered_at < self._options.reconnect_s

    def _single(self, tensor: Tensor) -> Tensor:
        """An output without the dimension of the batch."""
        if not self._options.model_batched:
            return tensor
        return Tensor(tensor.name(), tensor.as_numpy().reshape(tensor.shape()[1:]))
