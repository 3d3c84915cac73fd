"""The table of accepted differences and its page say the same."""

from . import differences
from .cases import CASES


def test_page_is_the_table() -> None:
    assert differences.PAGE.read_text() == differences.page()


def test_every_entry_names_a_case() -> None:
    names = {case.name for case in CASES}
    assert [name for name in differences.ACCEPTED if name not in names] == []


def test_every_case_is_on_the_page_or_not_accepted() -> None:
    listed = {line.split("`")[1] for line in differences.page().splitlines() if line.startswith("| `")}
    assert listed == set(differences.ACCEPTED)


def test_a_promise_is_checked_against_the_last_response() -> None:
    outcome = {"steps": [{"responses": [{"status": 200}, {"status": 404, "json": {"error": "no such thing"}}]}]}
    assert differences.broken_promise(differences.Accepted("r", 404, "no such"), outcome) == ""
    assert "got 404" in differences.broken_promise(differences.Accepted("r", 400), outcome)
    assert "missing" in differences.broken_promise(differences.Accepted("r", 404, "another"), outcome)


def test_an_answer_that_never_came_breaks_a_promise() -> None:
    outcome = {"steps": [{"responses": [], "ending": "timeout"}]}
    assert differences.broken_promise(differences.Accepted("r", 200), outcome)
