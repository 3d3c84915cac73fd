"""The repository index of a server without model control, and the control calls it refuses."""

from ..request import Case, case, get, post

_INDEX = "/v2/repository/index"

CASES: tuple[Case, ...] = (
    case("index/all", post(_INDEX)),
    case("index/empty_object", post(_INDEX, "{}")),
    case("index/ready", post(_INDEX, '{"ready":true}'), pick="add_sub"),
    case("index/ready_false", post(_INDEX, '{"ready":false}'), pick="versions_two"),
    case("index/ready_number", post(_INDEX, '{"ready":1}')),
    case("index/ready_text", post(_INDEX, '{"ready":"true"}')),
    case("index/ready_null", post(_INDEX, '{"ready":null}')),
    case("index/bad_json", post(_INDEX, "{")),
    case("index/array_body", post(_INDEX, "[]")),
    case("index/text_body", post(_INDEX, '"x"')),
    case("index/unknown_member", post(_INDEX, '{"nosuch":1}'), pick="add_sub"),
    case("index/get", get(_INDEX)),
    case("index/named_repository", post("/v2/repository/some/index"), pick="add_sub"),
    case("index/slash", post(_INDEX + "/")),
    case("index/load_refused", post("/v2/repository/models/add_sub/load")),
    case("index/load_unknown_refused", post("/v2/repository/models/nosuch/load")),
    case("index/load_bad_json", post("/v2/repository/models/add_sub/load", "{")),
    case("index/unload_refused", post("/v2/repository/models/add_sub/unload")),
    case("index/unload_bad_json", post("/v2/repository/models/add_sub/unload", "{")),
    case("index/load_get", get("/v2/repository/models/add_sub/load")),
    case("index/load_named_repository", post("/v2/repository/some/models/add_sub/load")),
    case("index/unload_named_repository", post("/v2/repository/some/models/add_sub/unload")),
    case("index/unknown_action", post("/v2/repository/models/add_sub/reload")),
)
