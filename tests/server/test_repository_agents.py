"""Repository agents: `checksum`, and agents in Python with their hooks, in a process of their own."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Serving, eventually, io_config, write_model
from tests.server.ensembles import load, run, unload, values
from tests.server.test_model_control import NUMBER

# Tells of its hooks, in a file; puts another number into the model's source where a parameter says so.
TELLER = """
    import json, os, shutil

    class TritonRepoAgent:
        def __init__(self):
            self.hooks = []

        def told(self, hook, model):
            self.hooks.append(hook)
            with open(model.parameters["file"], "a") as file:
                file.write(json.dumps([model.name, os.getpid(), *self.hooks]) + "\\n")

        def load(self, model):
            self.told("load", model)
            if "refuses" in model.parameters:
                raise ValueError("not this one")
            if "dies" in model.parameters:
                os._exit(3)
            if "number" in model.parameters:
                shutil.copytree(model.folder, model.new_folder, dirs_exist_ok=True)
                file = model.new_folder / "1" / "model.py"
                file.write_text(file.read_text().replace("[1]", "[" + model.parameters["number"] + "]"))
                return model.new_folder

        def load_complete(self, model):
            self.told("load_complete", model)

        def load_fail(self, model):
            self.told("load_fail", model)

        def unload(self, model):
            self.told("unload", model)

        def unload_complete(self, model):
            self.told("unload_complete", model)
            raise RuntimeError("nobody minds")
"""


def agents(*named: tuple[str, dict[str, str]]) -> str:
    parts = ""
    for name, parameters in named:
        listed = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        parts += f'agents {{ name: "{name}" {listed} }} '
    return f"model_repository_agents {{ {parts} }}"


class World:
    def __init__(self, server: Serving, home: Path) -> None:
        self.server = server
        self.home = home
        self.file = home / "told"

    def write(self, name: str, *named: tuple[str, dict[str, str]], source: str = NUMBER.format(1, 1)) -> Path:
        return write_model(self.home / "models", name, source, io_config(extra=agents(*named)))

    def teller(self, **parameters: str) -> tuple[str, dict[str, str]]:
        return "teller", {"file": str(self.file), **parameters}

    def told(self, name: str) -> list[list[str]]:
        """The hooks that each object of the agent has had for a model, after each of them."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return [line[2:] for line in lines if line[0] == name]

    @property
    def agent_pids(self) -> set[int]:
        return {json.loads(line)[1] for line in self.file.read_text().splitlines()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("agents")
    (home / "models").mkdir()
    for name, text in {"teller": TELLER, "broken": "import nosuch", "classless": "x = 1"}.items():
        (home / "agents" / name).mkdir(parents=True)
        (home / "agents" / name / "agent.py").write_text(re.sub(r"(?m)^    ", "", text))
    (home / "agents" / "compiled").mkdir()
    (home / "agents" / "compiled" / "libtritonrepoagent_compiled.so").touch()
    flags = ("--model-control-mode=explicit", f"--repoagent-directory={home / 'agents'}")
    with Serving(home / "models", *flags) as server:
        yield World(server, home)


def test_checksums(world: World) -> None:
    def md5(name: str) -> str:
        return hashlib.md5((world.home / "models" / "checked" / name).read_bytes()).hexdigest()

    world.write("checked")
    digest = md5("1/model.py")
    world.write("checked", ("checksum", {"MD5:1/model.py": digest}))
    assert load(world.server, "checked").status == 200
    assert values(run(world.server, "checked", 0)) == [1]
    world.write("checked", ("checksum", {"MD5:1/model.py": digest}), source=NUMBER.format(2, 2))
    answer = load(world.server, "checked")
    assert answer.status == 500
    assert f"Mismatched MD5 hash for file 1/model.py, expect {digest}, got {md5('1/model.py')}" in answer.error
    assert values(run(world.server, "checked", 0)) == [1]  # what served goes on
    for parameters, text in [
        ({"MD5:1/nosuch": digest}, "for its MD5 hash: No such file or directory"),
        ({"MD5:../other": digest}, "'../other' is outside of the model's folder"),
        ({"SHA:1/model.py": digest}, "has parameters MD5:<file>. Got 'SHA:1/model.py'"),
    ]:
        world.write("checked", ("checksum", parameters))
        assert text in load(world.server, "checked").error


def test_the_hooks_of_a_models_life(world: World) -> None:
    world.write("lives", world.teller(number="7"))
    assert load(world.server, "lives").status == 200
    assert values(run(world.server, "lives", 0)) == [7]
    assert load(world.server, "lives").status == 200  # nothing has changed, so nobody is asked
    assert world.told("lives") == [["load"], ["load", "load_complete"]]
    world.write("lives", world.teller(number="8"))
    assert load(world.server, "lives").status == 200
    assert values(run(world.server, "lives", 0)) == [8]
    eventually(lambda: ["load", "load_complete", "unload", "unload_complete"] in world.told("lives"))
    assert unload(world.server, "lives").status == 200
    eventually(lambda: world.told("lives").count(["load", "load_complete", "unload", "unload_complete"]) == 2)
    world.server.wait_for("model 'lives', unload_complete: repository agent 'teller': RuntimeError: nobody minds")
    assert world.server.process.pid not in world.agent_pids


def test_agents_follow_one_another(world: World) -> None:
    world.write("chained", world.teller(number="5"), ("checksum", {"MD5:1/model.py": "0"}))
    digest = hashlib.md5(NUMBER.format(5, 1).encode()).hexdigest()
    answer = load(world.server, "chained")
    found = re.search(r"expect 0, got (\w+)", answer.error)
    assert found is not None
    assert found[1] != hashlib.md5((world.home / "models/chained/1/model.py").read_bytes()).hexdigest(), digest
    eventually(lambda: world.told("chained") == [["load"], ["load", "load_fail"]])
    world.write("chained", world.teller(number="5"), ("checksum", {"MD5:1/model.py": found[1]}))
    assert load(world.server, "chained").status == 200
    assert values(run(world.server, "chained", 0)) == [5]


def test_a_load_that_fails_is_told(world: World) -> None:
    world.write("fails", world.teller(), source="raise RuntimeError('no')")
    assert load(world.server, "fails").status == 400
    assert world.told("fails") == [["load"], ["load", "load_fail"]]


@pytest.mark.parametrize(
    ("name", "parameters", "text"),
    [
        ("teller", {"refuses": ""}, "repository agent 'teller': ValueError: not this one"),
        ("teller", {"dies": ""}, "repository agent 'teller' has died with exit code 3"),
        ("nosuch", {}, "unable to find repository agent 'nosuch', searched: '"),
        ("../x", {}, "'../x' can be no repository agent's name"),
        ("compiled", {}, "repository agent 'compiled' is a compiled library"),
        ("broken", {}, "cannot be started: ModuleNotFoundError: No module named 'nosuch'"),
        ("classless", {}, "cannot be started: AttributeError"),
    ],
)
def test_agents_that_refuse_or_break(world: World, name: str, parameters: dict[str, str], text: str) -> None:
    world.write("refused", (name, {"file": str(world.file), **parameters}))
    answer = load(world.server, "refused")
    assert (answer.status, text in answer.error) == (500, True), answer.error
    # The next model has a process again.
    world.write("after", world.teller())
    assert load(world.server, "after").status == 200
    assert unload(world.server, "after").status == 200


def test_agents_hear_that_a_load_was_ended_by_a_newer_one(world: World) -> None:
    folder = world.write("endless", world.teller())
    models = world.home / "saved"
    models.mkdir()
    source = folder.rename(models / "endless") / "1" / "model.py"
    with Serving(models, "--dev", f"--repoagent-directory={world.home / 'agents'}") as server:
        server.wait_until_ready()
        source.write_text("import threading\nthreading.Event().wait()")
        server.wait_for("(?s)(loading: endless:1.*){2}")
        source.write_text(textwrap.dedent(NUMBER.format(2, 2)))
        eventually(lambda: world.told("endless").count(["load", "load_complete"]) == 2)
        assert world.told("endless").count(["load", "load_fail"]) == 1
        # What is saved is checked with these agents.
        source.write_text("(")
        server.wait_for(r"model.py:1: ")
        assert "unable to find repository agent" not in server.output
