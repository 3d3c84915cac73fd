"""The trace settings; each case leaves them as it found them."""

import json

from ..messages import unary
from ..request import Case, Exchange, case, get, post, send

_PATH = "/v2/trace/setting"
_GET = get(_PATH)


def _post(body: object) -> Exchange:
    return post(_PATH, body if isinstance(body, str) else json.dumps(body))


def _changed(name: str, field: str, value: object) -> Case:
    return case(f"tracing/{name}", _post({field: value}), _GET, _post({field: None}))


def _kept(name: str, body: object) -> Case:
    return case(f"tracing/{name}", _post(body), _GET)


def _rpc(name: str, **settings: object) -> Case:
    values = {key: {"value": value} for key, value in settings.items()}
    back = {key: {} for key in settings if key != "trace_file"}
    return case(
        f"tracing/rpc_{name}",
        unary("TraceSetting", {"settings": values}),
        unary("TraceSetting", {"settings": back}),
    )


CASES: tuple[Case, ...] = (
    case("tracing/get", _GET),
    case("tracing/method", send("PUT", _PATH, "{}")),
    case("tracing/of_a_version", get("/v2/models/identity_fp32/versions/1/trace/setting")),
    _changed("rate", "trace_rate", "5"),
    _changed("rate_0", "trace_rate", "0"),
    _changed("rate_space", "trace_rate", " 5"),
    _changed("rate_tail", "trace_rate", "5x"),
    _changed("count", "trace_count", "7"),
    _changed("frequency", "log_frequency", "3"),
    _kept("empty_object", {}),
    _kept("empty_body", ""),
    _kept("bad_json", "{"),
    _kept("array", []),
    _kept("unknown", {"nosuch": 1}),
    _kept("mode", {"trace_mode": "opentelemetry"}),
    _kept("file", {"trace_file": "x"}),
    _kept("file_null", {"trace_file": None}),
    _kept("level_text", {"trace_level": "OFF"}),
    _kept("level_number", {"trace_level": [5]}),
    _kept("level_unknown", {"trace_level": ["BAD"]}),
    _kept("level_off_and_more", {"trace_level": ["OFF", "TENSORS"]}),
    _kept("rate_number", {"trace_rate": 5}),
    _kept("rate_text", {"trace_rate": "x"}),
    _kept("rate_empty", {"trace_rate": ""}),
    _kept("rate_too_large", {"trace_rate": "99999999999"}),
    _kept("count_too_small", {"trace_count": "-2"}),
    _kept("count_too_large", {"trace_count": "99999999999"}),
    _rpc("get"),
    _rpc("rate", trace_rate=["5"]),
    _rpc("two_values", trace_rate=["5", "6"]),
    _rpc("text", trace_rate=["x"]),
    _rpc("off_and_more", trace_level=["OFF", "TENSORS"]),
    _rpc("count_too_small", trace_count=["-2"]),
    _rpc("file", trace_file=["x"]),
)
