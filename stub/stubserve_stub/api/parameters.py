"""Parameters of requests and responses: what a model may pass, and the JSON text in which it reads them.

Upstream prints them in two ways, and models can see the difference. Python's json module prints what a model gave. The
server's own printer prints what a client sent (no spaces, no escapes to ASCII, numbers in their shortest plain form).
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, Optional, Union

from stubserve_stub.api.arguments import INT64_MAX, INT64_MIN, as_text
from stubserve_stub.api.exceptions import TritonModelException

Parameters = Dict[str, Union[bool, int, float, str]]
# Parameters that are only read
Given = Optional[Mapping[str, Any]]

# Characters before which JSON wants a backslash, as the server's printer writes them.
_ESCAPES = {chr(code): f"\\u{code:04X}" for code in range(0x20)}
_ESCAPES.update({'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_ESCAPE_TABLE = str.maketrans(_ESCAPES)


def checked(parameters: Any) -> Optional[Parameters]:
    """A model's `parameters` argument, or None if there are none. Raises TritonModelException for unfit ones."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        # Floats too, other than upstream: clients send them, and models pass them on.
        if not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters) or None


def refusal(parameters: Given) -> str:
    """Why parameters of a model cannot be sent, empty if they can.

    Upstream, too, accepts such parameters first, and then fails the request or response with them.
    """
    for key, value in (parameters or {}).items():
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            return f"Unsupported value type on parameters: '{key}' is {value}, not an integer of 64 bits"
        if isinstance(value, float) and not math.isfinite(value):
            return f"Unsupported value type on parameters: '{key}' is {value}, which JSON does not have"
        for text in (key, value):
            if isinstance(text, str) and as_text(text) is None:
                return f"Unsupported value type on parameters: {text!r} has characters that UTF-8 cannot encode"
    return ""


def given_json(parameters: Given) -> str:
    """The JSON text of what a model passed."""
    return json.dumps(parameters) if parameters else "{}"


def received_json(parameters: Given) -> str:
    """The JSON text of what a client sent."""
    if not parameters:
        return "{}"
    return "{" + ",".join(f'"{_escaped(key)}":{_value(value)}' for key, value in parameters.items()) + "}"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPE_TABLE)


def _value(value: Union[bool, int, float, str]) -> str:
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double(value)
    return str(value)


def _double(value: float) -> str:
    """The shortest digits that give `value` back; with an exponent below 1e-6 and from 1e21 on."""
    text = repr(value)
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    if not whole.isdigit():
        return "null"  # JSON has neither NaN nor infinity, so no client can have sent one
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - leading_zeros
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0.0"
    if 0 < point <= 21:
        digits = digits.ljust(point, "0")
        return f"{sign}{digits[:point]}.{digits[point:] or '0'}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}"
