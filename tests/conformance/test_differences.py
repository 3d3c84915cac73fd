"""The table of accepted differences and its page say the same."""

import re
from collections import Counter

from . import differences
from .accepted import ACCEPTED, SECTIONS, Accepted
from .cases import CASES


def test_page_is_the_table() -> None:
    assert differences.PAGE.read_text() == differences.page()


def test_page_lists_exactly_the_accepted_cases() -> None:
    rows = [line for line in differences.page().splitlines() if line.startswith("| ")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])}
    assert listed == set(ACCEPTED)


def test_the_page_in_plain_words_leads_to_every_section() -> None:
    text = (differences.PAGE.parent / "differences.md").read_text()
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in SECTIONS}
    assert set(re.findall(r"\(differences-cases\.md#([^)]*)\)", text)) == anchors
    assert not re.search(r"`[a-z_0-9]+/[a-z_0-9]+`", text), "names of cases are for the other page"


def test_every_entry_names_a_case_and_no_case_has_two_reasons() -> None:
    names = Counter(name for entries in SECTIONS.values() for entry in entries for name in entry.cases)
    assert [name for name, times in names.items() if times > 1] == []
    assert set(names) <= {case.name for case in CASES}


def test_a_promise_is_checked_against_the_last_response() -> None:
    outcome = {"steps": [{"responses": [{"status": 200}, {"status": 404, "json": {"error": "no 'such' thing"}}]}]}
    assert differences.broken_promise(Accepted("r", (), 404, "no 'such'"), "c", outcome) == ""
    assert "got 404" in differences.broken_promise(Accepted("r", (), 400), "c", outcome)
    assert "missing" in differences.broken_promise(Accepted("r", (), 404, "another"), "c", outcome)


def test_a_case_may_have_a_promise_of_its_own() -> None:
    outcome = {"steps": [{"responses": [{"status": 200, "json": [{"reason": "because"}]}]}]}
    entry = Accepted("r", ("a", "b"), 200, texts={"a": "because", "b": "why"})
    assert differences.broken_promise(entry, "a", outcome) == ""
    assert "'why' is missing" in differences.broken_promise(entry, "b", outcome)


def test_an_answer_that_never_came_breaks_a_promise() -> None:
    outcome = {"steps": [{"responses": [], "ending": "timeout"}]}
    assert differences.broken_promise(Accepted("r", (), 200), "c", outcome)
