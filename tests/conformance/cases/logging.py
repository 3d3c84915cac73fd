"""The log settings; each case leaves them as it found them."""

import json

from ..messages import unary
from ..request import Case, Exchange, case, get, post, send

_PATH = "/v2/logging"
_GET = get(_PATH)


def _post(body: object) -> Exchange:
    return post(_PATH, body if isinstance(body, str) else json.dumps(body))


def _changed(name: str, value: object, back: object) -> Case:
    return case(f"logging/{name}", _post({name: value}), _GET, _post({name: back}))


def _kept(name: str, body: object) -> Case:
    """A change that is refused, or none: what counts is the answer, and that all is as before."""
    return case(f"logging/{name}", _post(body), _GET)


def _rpc(name: str, **settings: object) -> Case:
    return case(f"logging/rpc_{name}", unary("LogSettings", {"settings": settings}), unary("LogSettings"))


CASES: tuple[Case, ...] = (
    case("logging/get", _GET),
    case("logging/get_with_body", send("GET", _PATH, "{}"), _GET),
    _changed("log_info", False, True),
    _changed("log_warning", False, True),
    _changed("log_error", False, True),
    _changed("log_verbose_level", 1, 0),
    _changed("log_format", "ISO8601", "default"),
    case(
        "logging/several",
        _post({"log_info": False, "log_format": "ISO8601"}),
        _post({"log_info": True, "log_format": "default"}),
    ),
    _kept("empty_object", {}),
    _kept("empty_body", ""),
    _kept("bad_json", "{"),
    _kept("array", []),
    _kept("text", '"log_info"'),
    _kept("unknown", {"nosuch": 1}),
    _kept("null", {"log_info": None, "log_format": None, "log_verbose_level": None, "log_file": None}),
    _kept("file", {"log_file": "elsewhere"}),
    _kept("file_empty", {"log_file": ""}),
    _kept("file_number", {"log_file": 3}),
    _kept("info_number", {"log_info": 1}),
    _kept("info_text", {"log_info": "true"}),
    _kept("warning_number", {"log_warning": 0}),
    _kept("error_array", {"log_error": [True]}),
    _kept("verbose_negative", {"log_verbose_level": -1}),
    _kept("verbose_float", {"log_verbose_level": 1.5}),
    _kept("verbose_text", {"log_verbose_level": "1"}),
    _kept("verbose_boolean", {"log_verbose_level": True}),
    _kept("verbose_too_large", {"log_verbose_level": 1 << 32}),
    _kept("format_unknown", {"log_format": "json"}),
    _kept("format_lower_case", {"log_format": "iso8601"}),
    _kept("format_number", {"log_format": 1}),
    # The first setting is changed, or not, before the second is refused.
    case("logging/good_then_bad", _post({"log_info": False, "log_format": "json"}), _GET, _post({"log_info": True})),
    case("logging/put", send("PUT", _PATH, "{}")),
    case("logging/delete", send("DELETE", _PATH)),
    case("logging/slash", get(_PATH + "/")),
    _rpc("get"),
    _rpc("info_text", log_info={"string_param": "yes"}),
    _rpc("verbose_boolean", log_verbose_level={"bool_param": True}),
    _rpc("format_unknown", log_format={"string_param": "json"}),
    _rpc("file", log_file={"string_param": "elsewhere"}),
    _rpc("unknown", nosuch={"bool_param": True}),
    _rpc("nothing_set", log_info={}),
)
