"""Schedulers decide which requests run when, and together with which others. They do no I/O.

A scheduler is a plain state machine. Its owner (see `stubserve.serving.dispatcher`) reports events, and asks `poll`
what to do now:

- `enqueue(request, now_ns)`      a request came in; raises ServeError if it cannot be queued
- `reschedule(request, now_ns)`   the model wants to execute the request once more
- `cancel(request)`               the request's client went away
- `response_complete(...)`        a request that ran has had its final response (if it `has_slots`)
- `work_done(instance, work)`     the instance has executed work: its slots are free (likewise)
- `instance_idle(instance, ...)`  an instance can be given more work (`depth` decides when, and how much)
- `instance_gone(instance)`       the instance died or was removed
- `poll(now_ns) -> Decision`      (instance, work) to start now, requests to answer now, when to poll again
- `drain()`                       no instance is left: returns all queued requests

Time is CLOCK_MONOTONIC in nanoseconds and always a parameter, so that tests drive it.
"""
