"""GET .../config, and the configuration a model gets from initialize."""

from ..request import Case, case, get, infer, post

CASES: tuple[Case, ...] = (
    *(
        case(f"config/{model}", get(f"/v2/models/{model}/config"))
        for model in (
            "add_sub",
            "identity_all",
            "reshaped_scalar",
            "reshaped_unknown",
            "constant",
            "scores",
            "versions_latest",
            "versions_all",
            "versions_two",
            "versions_specific",
            "self_described",
            "batcher",
            "queue_limited",
            "decoupled",
            "sequence",
            "rich_config",
            "bare_config",
        )
    ),
    case("config/version", get("/v2/models/versions_two/versions/2/config")),
    case("config/unknown_version", get("/v2/models/versions_two/versions/1/config")),
    case("config/unknown_model", get("/v2/models/nosuch/config")),
    case("config/post", post("/v2/models/add_sub/config", "{}")),
    case("config/initialize_args", infer("arguments", {"inputs": []}), note="what initialize gets"),
    case("config/initialize_args_rich", infer("arguments_rich", {"inputs": []})),
)
