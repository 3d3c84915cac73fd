"""What makes a commit a release."""

from __future__ import annotations

import pytest

from stubserve import __version__
from tools.release import version, why_dry


@pytest.mark.parametrize(
    ("tags", "changed", "why"),
    [
        (["v1.2.0"], [], ""),
        (["latest", "v1.2.0"], [], ""),
        ([], [], "the version is 1.2.0, and this commit has no tag: git tag -s v1.2.0"),
        (["v1.1.0"], [], "the version is 1.2.0, and this commit has the tags v1.1.0: git tag -s v1.2.0"),
        (["v1.2.0"], [" M README.md", "?? x"], "2 files are changed or new, README.md for instance"),
    ],
)
def test_a_release_is_a_tagged_commit_without_changes(tags: list[str], changed: list[str], why: str) -> None:
    assert why_dry("1.2.0", tags, changed) == why


def test_the_version_is_that_of_the_program() -> None:
    assert version() == __version__
