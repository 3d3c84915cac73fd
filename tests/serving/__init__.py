"""Tests of `stubserve.serving`. Real servers for tests are in `tests.real_server`, and known by this name as well."""

from tests.real_server import (
    IDENTITY,
    Answer,
    Serving,
    binary_output,
    binary_request,
    eventually,
    io_config,
    write_model,
)

__all__ = ["IDENTITY", "Answer", "Serving", "binary_output", "binary_request", "eventually", "io_config", "write_model"]
