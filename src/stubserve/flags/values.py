"""Reads the values of flags from text, and makes the error for a value of the wrong form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stubserve.api.access import KINDS, RESTRICTED_KINDS
from stubserve.api.fair_queues import WAYS
from stubserve.errors import UsageError
from stubserve.settings.groups import VariableRule


def parse_bool(text: str) -> bool:
    """Triton's booleans: true, on, 1, false, off, 0 in any case. Raises UsageError."""
    value = text.lower()
    if value in ("true", "on", "1"):
        return True
    if value in ("false", "off", "0"):
        return False
    raise UsageError(f"invalid value for bool option: {text}. Use true or false")


def parse_fair_queues(text: str) -> str:
    """How clients are told apart. Raises UsageError."""
    if text not in WAYS:
        raise UsageError(f"it is one of {', '.join(WAYS)}. Got {text}")
    return text


def parse_int(text: str, bits: int = 32) -> int:
    """A decimal number. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"Invalid option value. Got {text}. Use a whole number") from None
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise UsageError(f"Provided option value is out of bound. Got {text}")
    return value


def parse_long(text: str) -> int:
    """A decimal number of 64 bits. Raises UsageError."""
    return parse_int(text, 64)


def parse_count(text: str) -> int:
    """A number that is not negative. Raises UsageError."""
    value = parse_int(text)
    if value < 0:
        raise UsageError(f"a count is a number from 0 on. Got {text}")
    return value


def parse_fraction(text: str) -> float:
    """A number from 0 to 1. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"Invalid option value. Got {text}. Use a number from 0 to 1") from None
    if not 0 <= value <= 1:
        raise UsageError(f"expects limit fraction to be in range [0.0, 1.0], got {text}")
    return value


def parse_capability(text: str) -> float:
    """A compute capability of CUDA. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"Invalid option value. Got {text}. Use a number, as 6.0") from None


def parse_pair(text: str, between: str = ":") -> tuple[str, str]:
    """A text of the form `<first>:<second>`. Raises UsageError."""
    first, found, second = text.partition(between)
    if not found:
        raise UsageError(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format "
            f"<first>{between}<second>. Found: {text}"
        )
    return first, second


def parse_port_range(text: str) -> tuple[int, int]:
    """`<first>-<last>`, two ports. Raises UsageError."""
    first, last = parse_pair(text, "-")
    return parse_int(first), parse_int(last)


class CloudAddress(str):
    """The address of a repository in the cloud, which is not a path."""


def parse_repository(text: str) -> Path | CloudAddress:
    """A folder or, with a cloud's scheme in front, an address in the cloud."""
    return CloudAddress(text) if text.startswith(("s3://", "gs://", "as://")) else Path(text)


def parse_seconds(text: str) -> float:
    """A time in seconds, from 0 on, with or without a fraction. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"a time is a number of seconds, from 0 on. Got {text}")
    return value


def parse_size(text: str) -> int:
    """Bytes, as a number with an optional suffix: 512M, 8G. Raises UsageError."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    digits, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    if not digits.isdecimal() or int(digits) == 0:
        raise UsageError(f"a size is a positive number of bytes, with K, M, G or T behind it if you like. Got {text}")
    return int(digits) << shift


def parse_origin(text: str) -> str:
    """An origin as browsers write it: scheme, host and port, and nothing more; or * for all. Raises UsageError."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", text):
        raise UsageError(f"an origin is as https://example.org or http://localhost:3000, or * for all. Got {text}")
    return text


def parse_gpu_fallback(text: str) -> bool:
    """Whether instances run on the CPU if there is no GPU: cpu or none. Raises UsageError."""
    if text not in ("cpu", "none"):
        raise UsageError(f"--gpu-fallback must be cpu or none. Got {text}")
    return text == "cpu"


def restricted(flag: str, noun: str) -> Callable[[str], dict[str, tuple[str, str]]]:
    """Reads `<kind>,<kind>:<key>=<value>` as kind -> (key, value). Raises UsageError."""

    def parse(text: str) -> dict[str, tuple[str, str]]:
        kinds, _, assignment = text.partition(":")
        key, _, value = assignment.partition("=")
        if not key or not value:
            raise UsageError(f"{flag} option format is '<{noun}>,<{noun}>,...:<key>=<value>'. Got {text}")
        names = kinds.split(",")
        for kind in names:
            if kind not in RESTRICTED_KINDS:
                raise UsageError(f"unknown restricted {noun} '{kind}'. Use {', '.join(RESTRICTED_KINDS)}")
        check_restricted(names, noun)
        return dict.fromkeys(names, (key, value))

    return parse


# The APIs of Triton's front end for OpenAI's protocol
_OPENAI_KINDS = ("inference", "model-repository", "metrics", "health")


def parse_openai_restriction(text: str) -> dict[str, tuple[str, str]]:
    """Reads `<kind>,<kind> <key> <value>` as kind -> (key, value). Raises UsageError."""
    words = text.split(" ")
    if len(words) != 3 or not all(words):
        raise UsageError(f"it needs three words: '<api>,<api>,...', a header and its value. Got {text}")
    names = words[0].split(",")
    for kind in names:
        if kind not in _OPENAI_KINDS:
            raise UsageError(f"Unknown API '{kind}'. Available APIs: {list(_OPENAI_KINDS)}")
    check_restricted(names, "api")
    return dict.fromkeys(names, (words[1], words[2]))


def check_restricted(kinds: Sequence[str], noun: str) -> None:
    """Raises UsageError for a kind that is unknown or comes twice."""
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise UsageError(f"restricted {noun} '{kind}' can not be specified in multiple config groups")


def parse_kinds(text: str) -> frozenset[str]:
    """Kinds of APIs, separated by commas. Raises UsageError."""
    kinds = frozenset(text.split(","))
    for kind in sorted(kinds - KINDS):
        raise UsageError(f"unknown API '{kind}'; there are {', '.join(sorted(KINDS))}")
    return kinds


def parse_sandbox(text: str) -> frozenset[str]:
    """Kinds of --stub-sandbox, separated by commas. Raises UsageError."""
    kinds = frozenset(text.split(","))
    if not kinds <= {"files", "network"}:
        raise UsageError(f"--stub-sandbox is files, network or files,network. Got {text}")
    return kinds


def parse_variable(text: str) -> VariableRule:
    """`[<model>:][-]<name>`, with * for any characters; - withholds the variable. Raises UsageError."""
    model, colon, name = text.rpartition(":")
    pattern = name.removeprefix("-")
    if not re.fullmatch(r"[A-Za-z0-9_*]+", pattern) or (colon and not model):
        raise UsageError(
            f"--stub-env is [<model>:]<name> to show a variable, [<model>:]-<name> to withhold it. Got {text}"
        )
    return VariableRule(pattern, pattern == name, model)


def parse_backend_config(text: str) -> tuple[str, str, str]:
    """`[<backend>,]<setting>=<value>` as (backend, setting, value); no backend: for all. Raises UsageError."""
    backend, comma, assignment = text.partition(",")
    if not comma:
        backend, assignment = "", text
    setting, _, value = assignment.partition("=")
    if not setting or not value or (comma and not backend):
        raise UsageError("--backend-config option format is '<backend name>,<setting>=<value>'. Got " + text)
    return backend, setting, value


_TRACE_SETTINGS = {
    "": ("level", "rate", "count", "mode"),
    "triton": ("file", "log-frequency"),
    "opentelemetry": ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
}
_TRACE_LEVELS = ("TIMESTAMPS", "TENSORS", "OFF", "MIN", "MAX")


def parse_trace_config(text: str) -> tuple[str, str, str]:
    """`[<mode>,]<setting>=<value>` as (mode, setting, value); no mode: for all. Raises UsageError."""
    front, _, value = text.partition("=")
    mode, comma, setting = front.partition(",")
    if not comma:
        mode, setting = "", front
    if not setting or not value or (comma and not mode):
        raise UsageError("--trace-config option format is '[<trace mode>,]<setting>=<value>'. Got " + text)
    if mode not in _TRACE_SETTINGS:
        raise UsageError(f"--trace-config: the trace modes are triton and opentelemetry. Got {text}")
    known = _TRACE_SETTINGS[mode]
    if setting not in known:
        of = f"trace mode '{mode}'" if mode else "all trace modes"
        raise UsageError(f"--trace-config: the settings of {of} are {', '.join(known)}. Got {text}")
    return mode, setting, _trace_value(setting, value)


def _trace_value(setting: str, value: str) -> str:
    if setting == "mode" and value not in ("triton", "opentelemetry"):
        raise UsageError(f"--trace-config: the trace modes are triton and opentelemetry. Got mode={value}")
    if setting == "level" and value not in _TRACE_LEVELS:
        raise UsageError(f"--trace-config: the levels are TIMESTAMPS, TENSORS and OFF. Got level={value}")
    if setting in ("rate", "count", "log-frequency") or setting.startswith("bsp_"):
        number = parse_int(value)
        least = {"count": -1, "rate": 0, "log-frequency": 0, "bsp_schedule_delay": 0}.get(setting, 1)
        if number < least:
            raise UsageError(f"--trace-config: {setting} must be at least {least}. Got {value}")
    if setting == "resource" and not all(value.partition("=")):
        raise UsageError(f"--trace-config: a resource is <key>=<value>. Got {value}")
    return value


def older_trace_flag(mode: str, setting: str) -> Callable[[str], tuple[str, str, str]]:
    """Reads the value of a flag that --trace-config has replaced."""
    return lambda text: (mode, setting, _trace_value(setting, text))


def parse_metrics_config(text: str) -> dict[str, Any]:
    """`<setting>=<value>` as a field of LatencySettings. Raises UsageError."""
    setting, _, value = text.partition("=")
    if not setting or not value:
        raise UsageError("--metrics-config option format is '<setting>=<value>'. Got " + text)
    if setting in ("counter_latencies", "histogram_latencies", "summary_latencies"):
        return {setting: parse_bool(value)}
    if setting != "summary_quantiles":
        raise UsageError(
            "--metrics-config has the settings counter_latencies, histogram_latencies, summary_latencies and "
            f"summary_quantiles. Got {text}"
        )
    try:
        # "0.5:0.05,0.9:0.01": quantile and allowed error. The error is always smaller here.
        quantiles = tuple(float(pair.partition(":")[0]) for pair in value.split(","))
    except ValueError:
        quantiles = ()
    if not quantiles or not all(0 <= quantile <= 1 for quantile in quantiles):
        raise UsageError(f"summary_quantiles are '<quantile>:<error>,...' with quantiles from 0 to 1. Got {value}")
    return {"quantiles": quantiles}


def parse_gpu_pool(text: str) -> tuple[int, int]:
    """`<GPU>:<bytes>` as two numbers. Raises UsageError."""
    gpu, nbytes = parse_pair(text)
    return parse_count(gpu), parse_count(nbytes)


def parse_gpu_fraction(text: str) -> tuple[int, float]:
    """`<GPU>:<fraction>` as two numbers. Raises UsageError."""
    gpu, fraction = parse_pair(text)
    return parse_int(gpu), parse_fraction(fraction)


def parse_rate_limit(text: str) -> str:
    """Whether instances share resources, in upper or lower case. Raises UsageError."""
    mode = text.lower()
    if mode not in ("off", "execution_count"):
        raise UsageError(f"invalid argument, got: {text}. Use off or execution_count")
    return mode


def parse_rate_limit_resource(text: str) -> tuple[str, int, int | None]:
    """`<name>:<count>[:<device>]` as (name, count, device or None for all). Raises UsageError."""
    name, *numbers = text.split(":")
    if not 1 <= len(numbers) <= 2:
        raise UsageError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count = parse_int(numbers[0])
    if count < 0:
        raise UsageError(f"--rate-limit-resource: a count is not negative. Got {text}")
    device = parse_int(numbers[1]) if len(numbers) == 2 else -1
    return name, count, None if device < 0 else device
