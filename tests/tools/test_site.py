"""What the site has beside what lies in docs/: made in one place, and shown wherever it belongs."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.documentation.pages import ROOT, blocks, pages
from tools.reference.diagrams import picture, with_pictures
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


FLOWS = [block.text for page in pages() for block in blocks((ROOT / page).read_text()) if block.language == "flow"]


@pytest.mark.parametrize("text", FLOWS)
def test_a_picture_has_a_box_for_each_name_and_no_two_overlap(text: str) -> None:
    svg = ElementTree.fromstring(picture(text)).find("svg")
    assert svg is not None
    boxes = [tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height")) for box in svg.iter("rect")]
    names = {name.strip() for line in text.splitlines() for name in re.split(r" (?:-[^>]*)?-> ", line) if name}
    assert len(boxes) == len(names)
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:number]:
            apart = (
                x + width < other_x or other_x + other_width < x or y + height < other_y or other_y + other_height < y
            )
            assert apart, text
    # On a page with both of its menus there is room for this.
    assert float(svg.attrib["viewBox"].split()[2]) < 1000


def test_only_blocks_of_flow_become_pictures() -> None:
    page = "```sh\na -> b\n```\n\n```flow\na -> b <c>\n```\n"
    shown = with_pictures(page)
    assert shown.startswith("```sh\na -> b\n```\n\n<figure")
    assert "b &lt;c&gt;" in shown
    assert "```flow" not in shown
