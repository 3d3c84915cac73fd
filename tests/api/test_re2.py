"""RE2's patterns, by what Triton 2.51 forwarded with them of the headers X-Foo, x-bar and Y-Q."""

from __future__ import annotations

import re

import pytest

from stubserve.api.forwarded_headers import compile_re2

NAMES = ("X-Foo", "x-bar", "Y-Q")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("x-.*", "X-Foo x-bar"),
        ("(?-i)x-.*", "x-bar"),
        ("(?-i)X-.*", "X-Foo"),
        ("oo", "X-Foo"),
        ("^foo$", ""),
        ("(?-i)X-(?i)foo", "X-Foo"),
        (r"[[:alpha:]]-foo\z", "X-Foo"),
        ("(?i)X-F", "X-Foo"),
        ("(?i-s)x-f", "X-Foo"),
        (r"\pL-q", "Y-Q"),
        (r"\Qx-f\E", "X-Foo"),
        # By RE2's documentation
        ("(?-i)x-foo|Y-q|x-bar", "x-bar"),
        ("((?-i)x-f|y)|Y-q", "Y-Q"),
        ("(?-i:x)-.*", "x-bar"),
        ("[]x]-b", "x-bar"),
        ("[^[:upper:]x]", "X-Foo x-bar Y-Q"),
        (r"(?:X|Y)-\w{1}$", "Y-Q"),
    ],
)
def test_found(pattern: str, found: str) -> None:
    search = compile_re2(pattern).search
    assert [name for name in NAMES if search(name)] == found.split()


@pytest.mark.parametrize("pattern", ["x(?=-)", r"(x)\1", "(?<!x)", "x++", "[[:nothing:]]", "(", r"[a"])
def test_what_is_none(pattern: str) -> None:
    with pytest.raises(re.error):
        compile_re2(pattern)
