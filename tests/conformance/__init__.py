"""Runs the same raw HTTP and gRPC requests against real Triton and stubserve and compares every answer.

``python -m tests.conformance --help`` from the repository root; real Triton comes from ``tools/peers.sh``.
"""
