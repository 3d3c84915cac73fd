"""The cards of backends: the table, what the server reads from it, and the cards of installed packages."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from stubserve_stub.backends import cards
from stubserve_stub.backends.card import Card
from stubserve_stub.runtime.process import load

from stubserve.repository.folder import is_version_folder
from stubserve.repository.given_path import servable
from tests.packages import install

ROOT = Path(__file__).parents[3]
BACKENDS = ROOT / "stub" / "stubserve_stub" / "backends"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages; the cards are read anew before and after."""
    monkeypatch.syspath_prepend(str(tmp_path))
    cards.installed.cache_clear()
    yield tmp_path
    cards.installed.cache_clear()
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


CARD = "from stubserve_stub.backends.card import Card, ModelFile\nCARD = Card({!r}, 'some.module:Class')\n"


def _with(field: str) -> str:
    """The text of a module whose card has this field."""
    return CARD.format("bad").replace("Class'", f"Class', {field}")


@pytest.mark.parametrize("card", cards.built_in().values(), ids=lambda card: card.name)
def test_the_program_of_each_card_is_there(card: Card) -> None:
    if card.program:
        module, _, name = card.program.partition(":")
        source = ROOT / "stub" / Path(*module.split(".")).with_suffix(".py")
        assert re.search(rf"^class {name}\(", source.read_text(), re.MULTILINE)
    for place in filter(None, (card.checks_config, card.checks_files, card.limits_threads)):
        assert callable(load(place))


@pytest.mark.parametrize(
    "card", [card for card in cards.built_in().values() if card.parameters], ids=lambda card: card.name
)
def test_the_parameters_of_a_card_are_those_that_its_backend_reads(card: Card) -> None:
    folder = BACKENDS / card.program.split(".")[2]
    texts = (file.read_text() for file in folder.glob("*.py") if file.name != "card.py")
    named = {name for text in texts for name in re.findall(r"[\w.]+", text)}
    assert [one.name for one in card.parameters if one.name not in named] == []
    assert all(one.help.endswith(".") for one in card.parameters)


@pytest.mark.parametrize("card", cards.built_in().values(), ids=lambda card: card.name)
def test_the_cards_of_stubserve_would_do_as_those_of_packages(card: Card) -> None:
    if card.program:
        assert not cards._mistake(card, EntryPoint(card.name, "some:CARD", cards.GROUP))


def test_each_folder_of_a_backend_is_in_the_table_and_has_its_cards() -> None:
    assert sorted(cards.BUILT_IN) == sorted(file.parent.name for file in BACKENDS.glob("*/card.py"))


def test_the_server_names_no_backend() -> None:
    """What is known of a backend beside itself is on its card, so a name in the sources is a table of its own."""
    # "identity" is also the name of an encoding.
    names = "|".join(name for name in cards.built_in() if name not in (cards.PYTHON, "identity"))
    named = re.compile(rf"""["'](?:{names})["']|backends\.(?:{names}|identity)\b""")
    found = {
        str(file.relative_to(ROOT))
        for folder in (ROOT / "src", ROOT / "stub")
        for file in folder.rglob("*.py")
        if named.search(file.read_text())
        and not (file.parent.parent == BACKENDS and file.parent.name in cards.BUILT_IN)
    }
    # A replica writes configurations, as a user would.
    assert found == {"stub/stubserve_stub/backends/cards.py", "src/stubserve/fleet/replica.py"}


@pytest.mark.parametrize("file", ["model.py", "model.onnx", "model.pt", "model.pt2", "model.plan", "model.gguf"])
def test_the_file_of_a_model_in_a_version_means_its_model(tmp_path: Path, file: str) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version / file).touch()
    assert is_version_folder(version)
    with ExitStack() as until:
        assert servable(version / file, until) == tmp_path / "net"


def test_a_package_brings_a_backend(site: Path) -> None:
    install(site, "forest", "trees=forest_card:CARD", CARD.format("trees"))
    assert cards.card_of("trees").program == "some.module:Class"
    assert [card.name for card in cards.all_cards()] == [*cards.built_in(), "trees"]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("import nothing_like_it", "its card bad:CARD cannot be imported: ModuleNotFoundError: No module named"),
        ("CARD = 1", "bad:CARD is not a stubserve_stub.backends.card.Card with this name and a program"),
        (CARD.format("else"), "bad:CARD is not a stubserve_stub.backends.card.Card with this name and a program"),
        ("raise SystemExit(3)", "its card bad:CARD cannot be imported: SystemExit: 3"),
        (_with("files=(ModelFile('model.bad'))"), "'files' of bad:CARD is ModelFile("),
        (_with("files=('model.bad',)"), "'files' of bad:CARD is ('model.bad',), and has to be Tuple["),
        (_with("files=(ModelFile(3),)"), "'files' of bad:CARD is (ModelFile(name=3"),
        (_with("files=(ModelFile('../x'),)"), "the file '../x' in 'files' of bad:CARD does not lie in a version's"),
        (_with("lone_endings='.bad'"), "'lone_endings' of bad:CARD is '.bad', and has to be Tuple[str, ...]"),
        (_with("variables=(('A',),)"), "'variables' of bad:CARD is (('A',),), and has to be Tuple[Tuple[str, str], "),
        (_with("instances_on_cpu=2.5"), "'instances_on_cpu' of bad:CARD is 2.5, and has to be int"),
    ],
)
def test_a_broken_card_is_left_out_with_its_packages_name(
    site: Path, caplog: pytest.LogCaptureFixture, module: str, told: str
) -> None:
    install(site, "broken", "bad=bad:CARD", module)
    install(site, "forest", "trees=forest_card:CARD", CARD.format("trees"))
    with caplog.at_level(logging.WARNING):
        assert list(cards.installed()) == ["trees"]
    assert "the backend 'bad' of the package broken is left out: " + told in caplog.text


def test_a_folder_that_a_broken_removal_has_left_harms_nobody(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "forest", "trees=forest_card:CARD", CARD.format("trees"))
    install(site, "removed", "bushes=bushes_card:CARD", "")
    (site / "removed-1.0.dist-info" / "METADATA").unlink()
    (site / "bushes_card.py").unlink()
    with caplog.at_level(logging.WARNING):
        assert list(cards.installed()) == ["trees"]
    assert "the backend 'bushes' of an unnamed package is left out: its card bushes_card:CARD cannot be" in caplog.text


@pytest.mark.parametrize(("name", "owner"), [("identity", "stubserve"), ("trees", "the package forest")])
def test_a_name_is_taken_once(site: Path, caplog: pytest.LogCaptureFixture, name: str, owner: str) -> None:
    install(site, "forest", "trees=forest_card:CARD", CARD.format("trees"))
    install(site, "later", f"{name}=later_{name}:CARD", CARD.format(name))
    with caplog.at_level(logging.WARNING):
        assert list(cards.installed()) == ["trees"]
    assert f"the backend '{name}' of the package later is left out: {owner} has a backend of this name" in caplog.text
