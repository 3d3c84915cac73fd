"""Schedulers decide which requests run when, and together with which others. They do no I/O.

A scheduler is a plain state machine (`base.Scheduler`). Its owner (`stubserve.serving.dispatcher`) reports what happens
to requests and instances, and asks `poll` what to do now. Time is CLOCK_MONOTONIC in nanoseconds and always a
parameter, so that tests drive it.
"""
