"""What the pages show is what happens: their files are written, their commands typed, and the output compared.

A page that is not in `FOLLOWED` has a test of its own, which `OTHERWISE` names, or nothing to be run.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, blocks, pages, pitfalls
from tests.documentation.reader import IN_EACH_SHELL, Reader, check_installation

# Page -> where it is tested
OTHERWISE = {
    "docs/guides/backends.md": "tests/server/test_documented_backends.py",
    "docs/guides/own-backends.md": "tests/commands/test_init.py",
    "docs/guides/testing.md": "tests/testing/test_documentation.py",
    "docs/guides/browser.md": "tests/server/test_browsers.py",
    "docs/guides/examples.md": "tests/model_repository/test_examples.py",
    "docs/guides/gallery.md": "tests/documentation/test_gallery.py",
    "docs/guides/language-models.md": "tests/documentation/test_language_models.py",
    "docs/guides/video.md": "tests/server/test_documented_video.py",
    "docs/developing.md": "tests/stub/backends/test_documented.py",
    "docs/deployment/ray-serve.md": "tests/deploy/test_ray_serve.py",
    "docs/deployment/several-servers.md": "tests/documentation/test_several_servers.py",
}
FOLLOWED = [
    page for page in pages() if page not in OTHERWISE and any(block.runs for block in blocks((ROOT / page).read_text()))
]
# Page -> a package that it needs, which `make test-long` installs
NEEDS = {"docs/guides/scikit-learn.md": "sklearn", "docs/guides/tracking.md": "scipy"}
# What `stubserve fetch` brings
FETCHED = {"model_repository/ocr_detection/1/model.onnx"}
# What the site shows without a scroll bar, beside both of its menus (docs/stylesheets/site.css)
COLUMNS = 100
# A block that begins so has commands.
_COMMAND = re.compile(r"(?:\$ |(?:curl|kubectl|make|perf_analyzer|pip|python|stubserve) )")
# A command that goes on until ctrl-C
_GOES_ON = re.compile(r"(?:.* )?(?:stubserve serve|make serve|uvicorn)\b(?!.*&$)", re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("shell", IN_EACH_SHELL)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page in NEEDS else []) for page in FOLLOWED]
)
def test_a_reader_gets_what_the_page_shows(
    page: str, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    text = (ROOT / page).read_text()
    if "curl" in text and shutil.which("curl") is None:
        pytest.skip("needs curl")
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, shell)
    try:
        for block in blocks(text):
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.parametrize("page", pages())
def test_commands_can_be_pasted(page: str) -> None:
    """Into an interactive bash or zsh, whether or not a test can run them."""
    found = blocks((ROOT / page).read_text())
    commands = [command for block in found for command, _ in block.commands]
    assert {command: why for command in commands if (why := pitfalls(command))} == {}
    for block in found:
        for command, _ in block.commands[:-1]:
            assert not _GOES_ON.match(command), f"what stands below it is not reached:\n{block.text}"
        if block.language not in ("sh", "console") and not block.title:
            assert not _COMMAND.match(block.text), f"is of the language sh or console:\n{block.text}"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("make serve # all of it", "a comment"),
        ("# all of it", "a comment"),
        ("pip install stubserve[client]", "a pattern"),
        ("curl localhost:8000/v2?a=1", "a pattern"),
        ('echo "hello!world"', "history"),
        ("curl -d '{ \\\n }'", "a backslash"),
        ("serve <folder>", "a file"),
        ("pip install 'stubserve[client]' \"a#b\" x#y", ""),
        ("echo $? && [ -e x ] && cat <<END\nx\nEND", ""),
        ("a 2>&1 >b <c \\\n    --d='!' --e", ""),
    ],
)
def test_what_shells_take_for_something_else_is_found(command: str, why: str) -> None:
    assert why in pitfalls(command) if why else not pitfalls(command)


@pytest.mark.parametrize("page", pages())
def test_what_is_named_exists(page: str) -> None:
    """Targets of make, extras of the package, scripts and modules, in running text too."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    for command in re.findall(r"pip install ([^\n`]*)", text):
        check_installation(shlex.split(command))
    for script in re.findall(r"\b((?:model_repository|tests|tools|deploy|src|stub)/[\w/.-]+\.\w+)", text):
        assert (ROOT / script).exists() or script in FETCHED, script
    for module in re.findall(r"python -m ((?:tools|tests)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), module


@pytest.mark.parametrize("page", pages())
def test_tests_that_are_named_exist(page: str) -> None:
    for path, name in re.findall(r"`([\w/]*test_\w+\.py)::(\w+)`", (ROOT / page).read_text()):
        files = [file for file in (ROOT / "tests").rglob(Path(path).name) if file.match(path)]
        assert any(f"def {name}(" in file.read_text() for file in files), f"{path}::{name}"


@pytest.mark.parametrize("page", pages())
def test_code_is_not_clipped(page: str) -> None:
    """Commands are wrapped by a style. Files and code are not, since their lines mean something."""
    for block in blocks((ROOT / page).read_text()):
        if block.language not in ("sh", "console") and (block.title or block.language == "python"):
            assert [line for line in block.text.splitlines() if len(line) > COLUMNS] == []


def test_every_page_is_tested() -> None:
    for page, test in OTHERWISE.items():
        assert (ROOT / page).exists(), page
        assert Path(page).name in (ROOT / test).read_text(), f"{test} is about another page than {page}"


def test_pages_lie_where_the_index_says() -> None:
    """Guides and places of deployment in their folders, what is looked up at the top."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for section, entries in re.findall(r"^  - ([\w ]+):\n((?: {6,}.*\n)+)", menu, re.MULTILINE):
        looked_up = section in ("Reference", "Develop")
        for page in re.findall(r": (\S+\.md)$", entries, re.MULTILINE):
            guides = page.startswith(("guides/", "deployment/"))
            assert page == "index.md" or guides != looked_up, page


def test_styles_are_for_blocks_that_pages_have() -> None:
    """A block has its language for a class only with `pygments_lang_class`, without which no style applies."""
    styled = set(re.findall(r"\.language-(\w+)", (ROOT / "docs" / "stylesheets" / "site.css").read_text()))
    assert styled <= {block.language for page in pages() for block in blocks((ROOT / page).read_text())}
    assert "pygments_lang_class: true" in (ROOT / "mkdocs.yml").read_text()


def test_commands_are_what_a_shell_takes_them_for() -> None:
    """A backslash within quotes is a character of the text, so it must not be left out."""
    [console] = blocks("""```console
$ say 'one
    two'
one two
$ say \\
    three
```""")
    assert console.commands == [("say 'one\n    two'", "one two\n"), ("say \\\n    three", "")]
    [sh] = blocks("""```sh
first 'a \\
b'
second
```""")
    assert sh.commands == [("first 'a \\\nb'", ""), ("second", "")]
