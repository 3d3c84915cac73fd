"""Which versions a policy serves and how a request finds one."""

from ..request import Case, case, get, infer, post

_EMPTY = '{"inputs":[]}'


def _infer_at(model: str, version: str) -> Case:
    return case(
        f"versions/{model}_infer_{version}", post(f"/v2/models/versions_{model}/versions/{version}/infer", _EMPTY)
    )


CASES: tuple[Case, ...] = (
    *(
        case(f"versions/{policy}_{what or 'metadata'}", get(f"/v2/models/versions_{policy}{'/' if what else ''}{what}"))
        for policy in ("latest", "all", "two", "specific")
        for what in ("", "ready", "stats")
    ),
    *(
        case(f"versions/{policy}_infer_default", infer(f"versions_{policy}", _EMPTY))
        for policy in ("latest", "all", "two", "specific")
    ),
    _infer_at("all", "1"),
    _infer_at("all", "2"),
    _infer_at("all", "10"),
    _infer_at("all", "010"),
    _infer_at("all", "3"),
    _infer_at("latest", "1"),
    _infer_at("specific", "1"),
    _infer_at("specific", "2"),
    _infer_at("two", "2"),
    _infer_at("all", "0"),
    _infer_at("all", "9223372036854775808"),
    _infer_at("all", "-1"),
    case("versions/two_metadata_of_one", get("/v2/models/versions_two/versions/2")),
    case("versions/latest_metadata_of_unloaded", get("/v2/models/versions_latest/versions/1")),
    case("versions/latest_ready_of_unloaded", get("/v2/models/versions_latest/versions/1/ready")),
    case("versions/specific_ready_of_skipped", get("/v2/models/versions_specific/versions/2/ready")),
    case("versions/statistics_of_one", post("/v2/models/versions_all/versions/2/infer", _EMPTY), stats="versions_all"),
)
