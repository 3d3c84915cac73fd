"""Schedulers decide which requests run when, and together with which others. They do no I/O.

A scheduler is a plain state machine. Its owner (see `stubserve.repository.model`) tells it what happened and asks
`poll` what to do now:

- `enqueue(request, now_ns)`      a request came in; raises ServeError if it cannot be queued
- `reschedule(request, now_ns)`   the model wants to execute it once more
- `cancel(request)`               its client went away
- `instance_idle(instance)`       an instance can take a batch (it started, or finished one)
- `instance_gone(instance)`       it died or was removed
- `poll(now_ns) -> Decision`      batches to start now, requests to answer now, when to be polled again
- `drain()`                       no instance is left: everything that is queued

Time is CLOCK_MONOTONIC in nanoseconds and always a parameter, so that tests drive it.
"""
