"""Chooses the scheduler that a model's configuration asks for."""

from __future__ import annotations

import os
from typing import Any

from stubserve.errors import unsupported
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.default import DefaultScheduler
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.grouping import Grouping
from stubserve.schedulers.iterative import IterativeScheduler
from stubserve.schedulers.policy_queue import PriorityLevels

# Holds the first requests of every batching model back until this many wait; for tests. Not a number means 0: no hold.
HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"


def create_scheduler(config: Any) -> Scheduler:
    """The scheduler for a completed and validated `ModelConfig` message. Raises ServeError UNSUPPORTED."""
    choice = config.WhichOneof("scheduling_choice")
    if choice is None:
        return DefaultScheduler()
    if choice == "sequence_batching" and _is_iterative(config.sequence_batching):
        return IterativeScheduler(config.name, config.max_batch_size)
    if choice != "dynamic_batching":
        raise unsupported(f"model '{config.name}' is configured with '{choice}', which stubserve does not offer yet")
    batching = config.dynamic_batching
    hold = os.environ.get(HOLD_VARIABLE, "")
    return DynamicBatcher(
        config.max_batch_size,
        batching.preferred_batch_size,
        batching.max_queue_delay_microseconds,
        Grouping.from_config(config),
        PriorityLevels.from_config(batching),
        int(hold) if hold.isdecimal() else 0,
    )


def _is_iterative(batching: Any) -> bool:
    return bool(batching.iterative_sequence) and not batching.control_input and not batching.state
