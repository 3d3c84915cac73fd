"""The header by which a balancer knows the sequence of a request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from stubserve.client import AsyncClient, Client
from tests.real_server import Serving, io_config, write_model

TELLS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            told = [json.loads(request.parameters() or "{}").get("x-sequence-id", "none") for request in requests]
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[one]], object))]) for one in told
            ]
"""
PATTERN = "header-forward-pattern=x-sequence-id"


def test_it_goes_with_each_request_of_a_sequence(tmp_path: Path, protocol: str) -> None:
    write_model(tmp_path, "tells", TELLS, io_config("STRING", "1", 8))
    given = {"INPUT0": np.array([["x"]], object)}
    with Serving(tmp_path, f"--http-{PATTERN}", f"--grpc-{PATTERN}") as server:
        server.wait_until_ready()
        url = f"{protocol}://127.0.0.1:{server.port if protocol == 'http' else server.grpc_port}"
        with Client(url, headers={"x-else": "1"}) as client:

            def told(**options: object) -> bytes:
                answer: bytes = client.infer("tells", given, **options)["OUTPUT0"].item()
                return answer

            assert told() == b"none"
            assert told(sequence_id=7, sequence_start=True) == b"7"
            assert told(sequence_id="seven") == b"seven"
        with Client(url, headers={"x-sequence-id": "mine"}) as client:
            assert told(sequence_id=7) == b"mine"

        async def ask() -> bytes:
            async with AsyncClient(url) as client:
                answer: bytes = (await client.infer("tells", given, sequence_id=8))["OUTPUT0"].item()
                return answer

        assert asyncio.run(ask()) == b"8"
