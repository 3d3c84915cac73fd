"""Chooses the scheduler that a model's configuration asks for."""

# Compiled by mypyc.
from __future__ import annotations

from typing import Any

from stubserve_stub.backends.cards import card_of

from stubserve.errors import unsupported
from stubserve.inference.work import Grouping
from stubserve.parts import require
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.delay import BACKLOG_VARIABLE, HOLD_VARIABLE, SchedulerDelay, from_environment
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.policy_queue import PriorityLevels


def create_scheduler(config: Any, max_queue_size: int = 0) -> Scheduler:
    """The scheduler for a completed and validated `ModelConfig` message. Raises ServeError UNSUPPORTED.

    `max_queue_size` is the limit where the configuration has none, except for sequences; 0 stands for none.
    """
    choice = config.WhichOneof("scheduling_choice")
    if choice is None:
        # As upstream: every request runs alone, first come first served, even where max_batch_size would allow batches.
        return DynamicBatcher(1, priorities=PriorityLevels().bounded(max_queue_size))
    hold_until = from_environment(HOLD_VARIABLE)
    if choice == "sequence_batching":
        require("sequences")
        from stubserve.sequences.direct import DirectBatcher
        from stubserve.sequences.oldest import OldestBatcher

        if config.sequence_batching.HasField("oldest"):
            return OldestBatcher(config, hold_until)
        return DirectBatcher(config, SchedulerDelay(hold_until, from_environment(BACKLOG_VARIABLE)))
    if choice != "dynamic_batching":
        raise unsupported(f"model '{config.name}' is configured with '{choice}', which stubserve does not offer yet")
    batching = config.dynamic_batching
    priorities = PriorityLevels.from_config(batching)
    if max_queue_size:
        priorities = priorities.bounded(max_queue_size)
    if card_of(config.backend).answers_one_by_one:
        return DynamicBatcher(1, priorities=priorities)
    return DynamicBatcher(
        config.max_batch_size,
        batching.preferred_batch_size,
        batching.max_queue_delay_microseconds,
        Grouping.from_config(config),
        priorities,
        hold_until,
    )
