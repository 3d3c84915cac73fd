"""Flags of tritonserver that cannot have an effect here: read as upstream reads them, and the log says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stubserve.errors import UsageError
from stubserve.flags.values import parse_bool, parse_count, parse_int, parse_long, parse_pair


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Why a flag has no effect, and the check that refuses what upstream refuses. A `switch` needs no value."""

    why: str
    check: Callable[[str], Any]

    @property
    def switch(self) -> bool:
        return self.check is parse_bool


def _check_device_bytes(text: str) -> None:
    device, size = parse_pair(text)
    parse_int(device)
    parse_long(size)


def _check_host_policy(text: str) -> None:
    policy, comma, assignment = text.partition(",")
    setting, equals, value = assignment.partition("=")
    if not (comma and policy and equals and setting and value):
        raise UsageError(f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}")
    if setting not in ("numa-node", "cpu-cores"):
        raise UsageError(
            f"Unsupported host policy setting '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'"
        )


_ONE_LOOP = "HTTP is served by one event loop, not by a pool of threads"

_OWN_PARSERS = "what a model says is passed on: the model itself makes the tool calls of its answers"

UNNEEDED = {
    "backend": Unneeded("the names of a model's inputs and outputs say how OpenAI's routes ask it", str),
    "enable-kserve-frontends": Unneeded("HTTP and gRPC are served anyway (--allow-http, --allow-grpc)", parse_bool),
    "uvicorn-log-level": Unneeded("there is one log (--log-verbose, --access-log)", str),
    "default-max-tokens": Unneeded("a model that is told no number of tokens has its own", parse_int),
    "chat-template": Unneeded("it is read as chat_template.jinja in a model's folder, or that of --tokenizer", str),
    "lora-separator": Unneeded("adapters are chosen by the configuration of a model, not by its name", str),
    "tool-call-parser": Unneeded(_OWN_PARSERS, str),
    "max-tool-call-parse-bytes": Unneeded(_OWN_PARSERS, parse_int),
    "cache-directory": Unneeded("the caches are built in", str),
    "http-thread-count": Unneeded(_ONE_LOOP, parse_int),
    "sagemaker-thread-count": Unneeded(_ONE_LOOP, parse_int),
    "vertex-ai-thread-count": Unneeded(_ONE_LOOP, parse_int),
    "grpc-infer-thread-count": Unneeded("gRPC is served by one event loop, not by a pool of threads", parse_int),
    "grpc-infer-allocation-pool-size": Unneeded("requests and responses are not pooled here", parse_int),
    "grpc-max-response-pool-size": Unneeded("how much waits for a slow reader is bounded by its bytes here", parse_int),
    "cuda-virtual-address-size": Unneeded(
        "a pool has addresses for all memory that its GPU may give it", _check_device_bytes
    ),
    "buffer-manager-thread-count": Unneeded("tensors are not copied by threads of their own here", parse_count),
    "host-policy": Unneeded(
        "instances are processes, which the system places; to bind them all, start the server under numactl or taskset",
        _check_host_policy,
    ),
}
