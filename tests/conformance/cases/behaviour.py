"""What a model may do in execute, right and wrong, and what its client sees of it."""

# ruff: noqa: E501 - a case reads best on one line

import re

from ..repository import SOURCES
from ..request import DEFAULT_TIMEOUT_S, ERROR_CODES, Case, Exchange, case, infer, tensor
from ..serving_models import SILENT

# How long to wait for an answer that may never come; a second request then tells whether the instance is stuck.
SILENT_WAIT_S = 1.5

COMMANDS = tuple(re.findall(r'if command == "(\w+)"', (SOURCES / "behave.py").read_text()))


def _command(model: str, text: str, *outputs: str, timeout: float = DEFAULT_TIMEOUT_S, **more: object) -> Exchange:
    body: dict[str, object] = {"inputs": [tensor("COMMAND", "BYTES", [1], [text])], **more}
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    return infer(model, body, timeout=timeout)


CASES: tuple[Case, ...] = (
    *(case(f"behaviour/{name}", _command("behave", name)) for name in COMMANDS if name not in SILENT),
    *(case(f"behaviour/code_{code}", _command("behave", f"code_{code}")) for code in ERROR_CODES),
    case("behaviour/code_nosuch", _command("behave", "code_NOSUCH")),
    case("behaviour/error_with_id", _command("behave", "code_NOT_FOUND", id="my id")),
    case("behaviour/exception_with_id", _command("behave", "raise", id="my id")),
    case("behaviour/both_one_asked", _command("behave", "both", "EXTRA")),
    case("behaviour/both_asked_reversed", _command("behave", "both", "EXTRA", "RESULT")),
    case("behaviour/other_output_asked", _command("behave", "other_output", "RESULT")),
    case("behaviour/specials_binary", _command("behave", "specials", parameters={"binary_data_output": True})),
    case("behaviour/strided_binary", _command("behave", "strided", parameters={"binary_data_output": True})),
    case("behaviour/not_utf8_binary", _command("behave", "not_utf8", parameters={"binary_data_output": True})),
    case("behaviour/empty_binary", _command("behave", "empty_tensor", parameters={"binary_data_output": True})),
    case("behaviour/fine_after_exception", _command("behave", "raise"), _command("behave", "hello")),
    case("behaviour/no_execute", _command("no_execute", "x")),
    *(case(f"behaviour/async_{name}", _command("behave_async", name)) for name in ("hello", "raise", "tuple", "none_element")),
    case("behaviour/empty_response_list", infer("bare_config", {"inputs": []})),
    *(
        case(
            f"behaviour/{name}",
            _command(f"behave_{name}", name, timeout=SILENT_WAIT_S),
            _command(f"behave_{name}", "hello", timeout=SILENT_WAIT_S),
            server="senders",
        )
        for name in SILENT
    ),
)  # fmt: skip
