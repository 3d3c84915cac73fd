"""What the site has beside what lies in docs/: made in one place, and shown wherever it belongs."""

from __future__ import annotations

from tests.documentation.pages import ROOT
from tools.reference.hook import before_a_release, beside_installations

PAGE = """\
```sh
pip install 'stubserve[video]' opencv
```

```sh
pip install numpy
```
"""


def test_the_sentence_of_the_readme_stands_beside_each_installation() -> None:
    said = before_a_release("Words.\n\nUntil there is a release, do this.\n\nMore.\n")
    assert said == "Until there is a release, do this."
    assert before_a_release("Words.\n\nMore.\n") == ""
    page = beside_installations(PAGE, "guides/video.md", said)
    note = page.partition("opencv\n```\n")[2].partition("\n\n```")[0]
    assert note.strip() == f'!!! info "Before the first release"\n    {said} [Installing](installing.md) has more.'
    assert page.count("Before the first release") == 1
    assert "(guides/installing.md)" in beside_installations(PAGE, "index.md", said)


def test_after_a_release_nothing_is_added() -> None:
    assert beside_installations(PAGE, "index.md", "") == PAGE


def test_the_readme_has_one_such_sentence_or_none() -> None:
    assert (ROOT / "README.md").read_text().count("Until there is a release") <= 1
