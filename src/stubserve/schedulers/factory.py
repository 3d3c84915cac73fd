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
from stubserve.schedulers.sequence.batcher import SequenceBatcher
from stubserve.schedulers.sequence.controls import Controls
from stubserve.schedulers.sequence.direct import DirectBatcher
from stubserve.schedulers.sequence.oldest import OldestBatcher

# Holds the first requests of every batching model back until this many wait; for tests. Not a number means 0: no hold.
HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"


def create_scheduler(config: Any) -> Scheduler:
    """The scheduler for a completed and validated `ModelConfig` message. Raises ServeError UNSUPPORTED."""
    choice = config.WhichOneof("scheduling_choice")
    if choice is None:
        return DefaultScheduler()
    hold = os.environ.get(HOLD_VARIABLE, "")
    hold_until = int(hold) if hold.isdecimal() else 0
    if choice == "sequence_batching":
        scheduler = _sequence_scheduler(config, hold_until)
        if isinstance(scheduler, SequenceBatcher):
            scheduler.keeps_states = bool(config.sequence_batching.state)
        return scheduler
    if choice != "dynamic_batching":
        raise unsupported(f"model '{config.name}' is configured with '{choice}', which stubserve does not offer yet")
    batching = config.dynamic_batching
    return DynamicBatcher(
        config.max_batch_size,
        batching.preferred_batch_size,
        batching.max_queue_delay_microseconds,
        Grouping.from_config(config),
        PriorityLevels.from_config(batching),
        hold_until,
    )


def _sequence_scheduler(config: Any, hold_until: int) -> Scheduler:
    batching = config.sequence_batching
    if batching.iterative_sequence:
        for field in ("control_input", "state"):
            if getattr(batching, field):
                raise unsupported(
                    f"model '{config.name}' is configured with 'iterative_sequence' and '{field}', which stubserve "
                    "does not offer together yet"
                )
        return IterativeScheduler(config.name, config.max_batch_size)
    controls = Controls(config)
    idle_us = batching.max_sequence_idle_microseconds
    grouping = Grouping.from_config(config) if config.max_batch_size > 1 else None
    if batching.HasField("oldest"):
        oldest = batching.oldest
        return OldestBatcher(
            config.name,
            config.max_batch_size,
            idle_us,
            controls,
            oldest.max_candidate_sequences,
            oldest.preferred_batch_size,
            oldest.max_queue_delay_microseconds,
            grouping,
            hold_until,
        )
    direct = batching.direct
    return DirectBatcher(
        config.name,
        config.max_batch_size,
        idle_us,
        controls,
        direct.max_queue_delay_microseconds,
        direct.minimum_slot_utilization,
        grouping,
        hold_until,
    )
