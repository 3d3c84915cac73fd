"""Traces of requests (`--trace-config`): which are taken (`tracing`), and their way to a file or to a collector."""
