"""Upstream's texts for requests that belong to no sequence, or to an ended one."""

# Compiled by mypyc.
from __future__ import annotations

import logging

from stubserve.errors import ServeError, invalid, unavailable
from stubserve.sequences.slots import SequenceId

log = logging.getLogger("stubserve.scheduler")


class Refusals:
    """The texts for one model."""

    def __init__(self, model: str) -> None:
        self._model = model

    def rows(self) -> ServeError:
        return invalid(
            f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence "
            "batcher"
        )

    def no_id(self) -> ServeError:
        return invalid(
            f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
        )

    def not_begun(self, sequence: SequenceId, lost_with: str | None) -> ServeError:
        """For a request without START, or for a sequence that was lost with an instance."""
        if lost_with is not None:
            return self.lost(sequence, lost_with)
        return invalid(
            f"inference request for sequence {sequence} to model '{self._model}' must specify the START flag on the "
            "first request of the sequence"
        )

    def lost(self, sequence: SequenceId, instance: str) -> ServeError:
        """For a sequence whose stub has died; upstream has no such text."""
        return unavailable(
            f"sequence {sequence} of model '{self._model}' has ended because its instance '{instance}' is gone, and "
            "its state with it; begin it anew with the START flag"
        )

    @staticmethod
    def expired() -> ServeError:
        return unavailable("timeout of the corresponding sequence has been expired")

    def log_conflict(self, sequence: SequenceId) -> None:
        log.warning(
            "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence start. "
            "Previous sequence will be terminated early.",
            sequence,
            self._model,
        )

    def log_idle(self, sequence: SequenceId) -> None:
        log.debug("sequence %s of model '%s' has been idle for too long", sequence, self._model)
