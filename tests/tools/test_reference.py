"""The reference pages are complete: what they add to the code is about all of it, and about nothing that is gone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import triton_python_backend_utils as pb_utils

from stubserve.flags.table import FLAGS, Flag
from stubserve.flags.unneeded import UNNEEDED
from stubserve.observability.families import RESERVED
from tools.reference import PAGES, routes
from tools.reference.config import messages
from tools.reference.config_fields import FIELDS
from tools.reference.flags import GROUPS, default_of, plain, set_by
from tools.reference.markdown import cell


def test_every_flag_has_a_row() -> None:
    page = PAGES["reference/flags.md"]()
    known = [*(flag.name for flag in FLAGS), *UNNEEDED]
    assert sorted(re.findall(r"^\| `--([\w-]+)`\{\.whole\} \|", page, re.MULTILINE)) == sorted(known)
    assert {flag.setting.rpartition(".")[0] for flag in FLAGS} == set(GROUPS)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_default_that_the_help_tells_is_the_one(flag: Flag) -> None:
    """Except where it is told in words, because it hangs on the machine or on another flag."""
    text, told = default_of(flag)
    default = set_by(flag)
    assert text.endswith(".")
    in_words = " " in told or told.startswith("~") or (told == "none" and not default)
    assert in_words or told == plain(default) or flag.parse(told) == default


def test_every_field_of_the_configuration_has_a_row() -> None:
    known = {name: {field.name for field in descriptor.fields} for name, descriptor in messages()}
    assert {name: set(fields) for name, fields in FIELDS.items()} == known


def test_every_route_has_a_row() -> None:
    assert set(routes.http_routes()) == set(routes.HTTP)
    assert {name for _, name in routes.grpc_methods()} == set(routes.GRPC)


def test_a_route_without_a_sentence_is_told_where_to_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(routes.HTTP, "/v2/health/live")
    with pytest.raises(LookupError, match=r"^/v2/health/live has no sentence: say in HTTP of tools/reference/"):
        routes.routes_page()


def test_what_is_said_of_gpus_holds_on_any_machine() -> None:
    pages = PAGES["reference/config.md"]() + PAGES["reference/routes.md"]()
    assert "there is no GPU" not in pages
    assert "`KIND_GPU`, for Python, ONNX and PyTorch models on a machine with GPUs" in pages


def test_every_metric_has_a_row() -> None:
    assert set(re.findall(r"^\| `([\w:]+)`\{\.whole\} \|", PAGES["reference/metrics.md"](), re.MULTILINE)) == set(
        RESERVED
    )


def test_every_name_of_pb_utils_has_a_heading_or_an_item() -> None:
    found = set(re.findall(r"^(?:### |- `)(\w+)", PAGES["reference/pb_utils.md"](), re.MULTILINE))
    assert set(pb_utils.__all__) - {"json", "struct", "np"} <= found


@pytest.mark.parametrize("write", PAGES.values(), ids=list(PAGES))
def test_nothing_of_this_process_is_shown(write: Callable[[], str]) -> None:
    """No address of an object, and the same again."""
    page = write()
    assert not re.search(r"0x[0-9a-f]{6}|<\w+ object", page)
    assert page == write()


def test_a_cell_is_one_line_without_tags() -> None:
    assert cell("<a>|`<b>`\n  c") == "&lt;a>\\|`<b>` c"
