"""Models that change while they serve: on disk, with polling, and by what a request to load says.

Each case has models of its own. Who changes files waits for what the change leads to; where that cannot be seen from
outside, a beacon is changed twice afterwards: whoever serves its second number has looked at everything between.
"""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import itertools
import json

from ..changing_models import BEACON, HEADER, PARAMETER, config, cpu, source, version
from ..request import Case, Exchange, Put, Step, Until, case, get, infer, post

_INDEX = post("/v2/repository/index")
_numbers = itertools.count(100)


def _run(model: str, output: str = "NUMBER") -> Exchange:
    return infer(model, {"inputs": [], "outputs": [{"name": output}]})


def _number(model: str, number: int) -> Until:
    return Until(_run(model), f'"data":[{number}]')


def _name(model: str, instance: str) -> Until:
    """Asks until this instance answers: which of several does is nobody's promise."""
    return Until(_run(model, "NAME"), f'"{instance}"')


def _code(model: str, number: int, of_version: int = 1) -> Put:
    return Put(f"{model}/{of_version}/model.py", source(number))


def _config(model: str, *groups: str, more: str = "") -> Put:
    return Put(f"{model}/config.pbtxt", HEADER + config(*groups, more=more))


def _served(model: str, text: str) -> Until:
    return Until(get(f"/v2/models/{model}/config"), text)


def _looks() -> tuple[Step, ...]:
    """What is changed before this has been looked at after it."""
    steps: list[Step] = []
    for _ in range(2):
        number = next(_numbers)
        steps += [_code(BEACON, number), _number(BEACON, number)]
    return tuple(steps)


def _poll(name: str, model: str, *steps: Step, stats: bool = True) -> Case:
    return case(f"poll/{name}", *steps, _INDEX, stats=model if stats else "", pick=model, server="poll")


def _new(*groups: str, number: int = 1) -> dict[str, str]:
    return {"config.pbtxt": HEADER + config(*groups), **version(1, source(number))}


_BROKEN_CONFIG = "max_batch_size: many\n"
_BROKEN_CODE = "raise ValueError('half of a change')\n"

_POLL = (
    _poll("nothing", BEACON, _run(BEACON)),
    _poll("model_appears", "new", Put("new", _new(number=5)), _number("new", 5)),
    _poll("model_goes", "goes", _run("goes"), Put("goes", None), Until(get("/v2/models/goes"), status=404),
          _run("goes"), get("/v2/models/goes/stats"), get("/v2/health/ready")),
    _poll("model_goes_and_comes_back", "moves", _run("moves"), Put("moves", None), Until(get("/v2/models/moves"), status=404),
          Put("moves", _new(number=2)), _number("moves", 2)),
    _poll("code_changes", "code", _run("code"), _code("code", 2), _number("code", 2)),
    _poll("config_changes", "config", _run("config"), _config("config", cpu(1), more=PARAMETER), _served("config", "changed"),
          _run("config")),
    _poll("config_rewritten", "rewritten", _run("rewritten"), _config("rewritten", cpu(1)), *_looks(), _run("rewritten")),
    _poll("file_appears", "refused", _run("refused"), Put("refused/notes", "x"), *_looks(), _run("refused")),
    _poll("version_comes", "version_comes", _run("version_comes"), Put("version_comes/7", {"model.py": source(7), "__pycache__": ""}),
          Until(get("/v2/models/version_comes/versions/7")), _run("version_comes"), get("/v2/models/version_comes")),
    _poll("version_changes", "version_changes", _run("version_changes"), _code("version_changes", 2, 2),
          _number("version_changes", 2)),
    _poll("version_goes", "version_goes", _run("version_goes"), Put("version_goes/2", None),
          Until(_INDEX, '"name":"version_goes","version":"2","state":"UNAVAILABLE"'), _run("version_goes")),
    _poll("version_policy", "policy", _run("policy"), _config("policy", cpu(1), more="version_policy { specific { versions: [1] } }"),
          Until(_INDEX, '"name":"policy","version":"2","state":"UNAVAILABLE"'), _run("policy")),
    _poll("config_breaks", "config_breaks", _run("config_breaks"), Put("config_breaks/config.pbtxt", _BROKEN_CONFIG), *_looks(),
          _run("config_breaks"), get("/v2/models/config_breaks/ready"), get("/v2/health/ready")),
    _poll("config_repaired", "config_breaks", _config("config_breaks", cpu(1), more=PARAMETER), _served("config_breaks", "changed")),
    _poll("code_breaks", "code_breaks", _run("code_breaks"), Put("code_breaks/1/model.py", _BROKEN_CODE), *_looks(),
          _run("code_breaks"), get("/v2/models/code_breaks/ready")),
    _poll("code_repaired", "code_breaks", _code("code_breaks", 3), _number("code_breaks", 3)),
    _poll("new_with_broken_config", "new_config", Put("new_config", {**_new(), "config.pbtxt": _BROKEN_CONFIG}),
          Until(_INDEX, '"new_config"'), *_looks(), get("/v2/models/new_config"), get("/v2/health/ready")),
    _poll("new_with_repaired_config", "new_config", _config("new_config", cpu(1)), _number("new_config", 1)),
    _poll("new_with_broken_code", "new_code", Put("new_code", {**_new(), "1/model.py": _BROKEN_CODE}),
          Until(_INDEX, '"name":"new_code","version":"1","state":"UNAVAILABLE"'), get("/v2/models/new_code"), stats=False),
    _poll("new_with_repaired_code", "new_code", _code("new_code", 4), _number("new_code", 4)),
    _poll("new_without_version", "new_empty", Put("new_empty", {"config.pbtxt": HEADER + config()}), *_looks()),
    _poll("new_without_anything", "new_nothing", Put("new_nothing", {}), *_looks()),
    _poll("instances_more", "grows", _run("grows"), _config("grows", cpu(2)), _served("grows", '"count":2'), _run("grows")),
    _poll("instances_more_names", "grows", _name("grows", "grows_0_0"), _name("grows", "grows_0_1"), stats=False),
    _poll("instances_fewer", "shrinks", _run("shrinks"), _config("shrinks", cpu(1)), _served("shrinks", '"count":1'), _run("shrinks")),
    _poll("instances_renamed", "renamed", _run("renamed"), _config("renamed", cpu(2, 'name: "other"')), _served("renamed", '"other"'),
          _name("renamed", "renamed_0_0"), stats=False),
    _poll("instances_of_another_kind", "kind", _run("kind"), _config("kind", "count: 1 kind: KIND_MODEL"), _served("kind", "KIND_MODEL"),
          _run("kind")),
    _poll("instances_and_code", "code_and_group", _run("code_and_group"), Put("code_and_group", _new(cpu(2), number=2)),
          _number("code_and_group", 2)),
    _poll("instance_fails", "group_bad", _run("group_bad"), _config("group_bad", cpu(2, 'name: "bad"')), Until(_INDEX, "notthisone"),
          _run("group_bad"), get("/v2/models/group_bad/config"), get("/v2/models/group_bad/ready"), get("/v2/health/ready")),
    _poll("instance_repaired", "group_bad", _config("group_bad", cpu(2, 'name: "good"')), Until(_INDEX, without="notthisone"),
          _served("group_bad", '"good"')),
    *(
        case(f"poll/{action}_{what}", post(f"/v2/repository/models/{model}/{action}", body), server="poll")
        for action in ("load", "unload")
        for what, model, body in (("refused", "refused", ""), ("unknown_refused", "nosuch", ""), ("parameters_refused", "refused", '{"parameters":{"config":"{}"}}'))
    ),
    # Last, because such a model is tried again at every look.
    _poll("config_goes", "config_goes", _run("config_goes"), Put("config_goes/config.pbtxt", None), *_looks(), _run("config_goes")),
    _poll("new_without_config", "new_code_only", Put("new_code_only", version(1, source(1))), *_looks()),
)  # fmt: skip


def _load(model: str, *groups: dict[str, object], **more: object) -> Exchange:
    text = json.dumps(
        {
            "backend": "python",
            "output": [
                {"name": "NUMBER", "data_type": "TYPE_INT32", "dims": [1]},
                {"name": "NAME", "data_type": "TYPE_STRING", "dims": [1]},
            ],
            "instance_group": list(groups),
            **more,
        }
    )
    return post(f"/v2/repository/models/{model}/load", json.dumps({"parameters": {"config": text}}))


def _group(count: int, kind: str = "KIND_CPU", **more: object) -> dict[str, object]:
    return {"count": count, "kind": kind, **more}


def _update(name: str, model: str, *steps: Step, stats: bool = True) -> Case:
    shown = get(f"/v2/models/{model}/config")
    return case(f"update/{name}", *steps, shown, _INDEX, stats=model if stats else "", pick=model, server="update")


_ALL: dict[str, object] = {"version_policy": {"all": {}}}
_UPDATE = (
    _update("more", "grows", _run("grows"), _load("grows", _group(2)), _run("grows")),
    _update("more_names", "grows", _name("grows", "grows_0_0"), _name("grows", "grows_0_1"), stats=False),
    _update("fewer", "shrinks", _run("shrinks"), _load("shrinks", _group(1)), _run("shrinks"), _run("shrinks")),
    _update("renamed", "renamed", _load("renamed", _group(2, name="other")), _name("renamed", "renamed_0_1"), stats=False),
    _update("another_kind", "kind", _run("kind"), _load("kind", _group(1, "KIND_MODEL")), _run("kind")),
    _update("two_groups", "kind", _run("kind"), _load("kind", _group(1, "KIND_MODEL", name="a"), _group(1, name="b")), _run("kind")),
    _update("passive", "kind", _load("kind", _group(1, "KIND_MODEL"), _group(1, passive=True)), _run("kind"), _run("kind")),
    _update("no_group", "refused", _run("refused"), _load("refused"), _run("refused")),
    _update("same", "rewritten", _run("rewritten"), _load("rewritten", _group(1)), _run("rewritten")),
    _update("parameter_too", "config", _run("config"), _load("config", _group(2), parameters={"a": {"string_value": "b"}}), _run("config")),
    _update("code_too", "code", _run("code"), _code("code", 2), _load("code", _group(1, name="g")), _run("code")),
    _update("on_disk", "config_breaks", _run("config_breaks"), _config("config_breaks", cpu(2)),
            post("/v2/repository/models/config_breaks/load"), _run("config_breaks")),
    _update("version_comes", "version_comes", _run("version_comes"), Put("version_comes/3", {"model.py": source(3), "__pycache__": ""}),
            _load("version_comes", _group(1), **_ALL), _run("version_comes")),
    _update("version_changes", "version_changes", _run("version_changes"), _code("version_changes", 2, 2),
            _load("version_changes", _group(1), **_ALL), _run("version_changes")),
    _update("policy", "policy", _run("policy"), _load("policy", _group(1), version_policy={"latest": {"num_versions": 2}}),
            _run("policy")),
    _update("fails", "group_bad", _run("group_bad"), _load("group_bad", _group(2, name="bad")), _run("group_bad"),
            get("/v2/models/group_bad/ready")),
    _update("repaired", "group_bad", _load("group_bad", _group(2, name="good")), _run("group_bad")),
    _update("no_such_gpu", "group_bad", _load("group_bad", _group(1, "KIND_GPU", gpus=[7])), _run("group_bad")),
)  # fmt: skip

_POLL_ONCE = (
    case("poll/once", get("/v2/models/echo_fp32/ready"), _INDEX, pick="echo_fp32", server="poll_once"),
    case("poll/once_load_refused", post("/v2/repository/models/echo_fp32/load"), server="poll_once"),
)

CASES: tuple[Case, ...] = (*_POLL, *_UPDATE, *_POLL_ONCE)
