"""Chooses the scheduler that a model's configuration asks for."""

from __future__ import annotations

from typing import Any

from stubserve.errors import unsupported
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.default import DefaultScheduler
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.grouping import Grouping
from stubserve.schedulers.hold import BACKLOG_VARIABLE, HOLD_VARIABLE, Hold, from_environment
from stubserve.schedulers.policy_queue import PriorityLevels
from stubserve.schedulers.sequence.batcher import SequenceBatcher
from stubserve.schedulers.sequence.controls import Controls
from stubserve.schedulers.sequence.direct import DirectBatcher
from stubserve.schedulers.sequence.oldest import OldestBatcher


def create_scheduler(config: Any, max_queue_size: int = 0) -> Scheduler:
    """The scheduler for a completed and validated `ModelConfig` message. Raises ServeError UNSUPPORTED.

    `max_queue_size` holds where the configuration has no limit, but for sequences; 0 stands for none.
    """
    choice = config.WhichOneof("scheduling_choice")
    if choice is None:
        return DefaultScheduler(max_queue_size)
    hold_until = from_environment(HOLD_VARIABLE)
    if choice == "sequence_batching":
        scheduler = _sequence_scheduler(config, hold_until)
        scheduler.keeps_states = bool(config.sequence_batching.state)
        return scheduler
    if choice != "dynamic_batching":
        raise unsupported(f"model '{config.name}' is configured with '{choice}', which stubserve does not offer yet")
    batching = config.dynamic_batching
    priorities = PriorityLevels.from_config(batching)
    if max_queue_size:
        priorities = priorities.bounded(max_queue_size)
    return DynamicBatcher(
        config.max_batch_size,
        batching.preferred_batch_size,
        batching.max_queue_delay_microseconds,
        Grouping.from_config(config),
        priorities,
        hold_until,
    )


def _sequence_scheduler(config: Any, hold_until: int) -> SequenceBatcher:
    batching = config.sequence_batching
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
            batching.iterative_sequence,
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
        batching.iterative_sequence,
        Hold(hold_until, from_environment(BACKLOG_VARIABLE)),
    )
