"""What the suite says of a run: case by case, in all, and when it is ended before that."""

import json
import re
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from .accepted import ACCEPTED
from .cases import CASES
from .report import Report
from .request import case

ANSWER: dict[str, Any] = {"steps": [{"responses": [{"status": 200, "headers": []}], "ending": "read"}]}
OTHER: dict[str, Any] = {"steps": [{"responses": [{"status": 404, "headers": []}], "ending": "read"}]}


def test_a_difference_is_told_with_its_place_and_what_is_the_same_only_when_asked_for() -> None:
    report = Report()
    assert report.judge(case("topic/a"), ANSWER, ANSWER) == []
    assert not report.failed
    told = report.judge(case("topic/b", note="why it matters"), ANSWER, OTHER)
    assert told == [
        "DIFFERENT topic/b  (why it matters)",
        "    steps[0].responses[0].status",
        "      triton    200",
        "      stubserve 404",
    ]
    assert report.failed
    assert report.lines == told
    assert Report(verbose=True).judge(case("topic/a"), ANSWER, ANSWER) == ["same topic/a"]


def test_an_accepted_difference_must_be_one() -> None:
    entry, name = next((entry, name) for name, entry in ACCEPTED.items() if not entry.sometimes)
    report = Report()
    assert report.judge(case(name), ANSWER, ANSWER)[0] == f"DIFFERENT {name}"
    assert "the answers are the same" in report.lines[1]


def test_a_server_that_did_not_start_is_no_row_of_differences() -> None:
    told = Report().judge(case("topic/a"), ANSWER, {"steps": [], "server": "did not start"})
    assert told == ["DIFFERENT topic/a", "    its server did not start, see above"]


def test_the_table_counts_by_topic_and_the_summary_says_how_far_it_is() -> None:
    report = Report()
    for name, answer in (("one/a", ANSWER), ("one/b", OTHER), ("two/a", ANSWER)):
        report.judge(case(name), ANSWER, answer)
    assert [line.split() for line in report.table().splitlines()] == [
        ["topic", "cases", "same", "explained", "different"],
        ["one", "2", "1", "0", "1"],
        ["two", "1", "1", "0", "0"],
        ["total", "3", "2", "0", "1"],
    ]
    assert report.summary(40) == "3 of 40 cases compared: 2 same, 0 explained, 1 different"


def test_a_run_that_is_ended_says_what_was_compared(tmp_path: Path) -> None:
    # The cases of the first take less than a second, those of the second many.
    setups = ("nowhere_strict", "limited")
    cases = [one for one in CASES if one.server in setups]
    oracle, page = tmp_path / "oracle.json", tmp_path / "report.txt"
    oracle.write_text(json.dumps({one.name: {"steps": []} for one in cases}))
    command = [sys.executable, "-m", "tests.conformance", f"--setups={','.join(setups)}"]
    command += [f"--oracle={oracle}", f"--report={page}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        before = list(takewhile(lambda line: not line.startswith("DIFFERENT limits/"), process.stdout))
        process.send_signal(signal.SIGTERM)
        after = process.stdout.read().splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"3 of {len(cases)} cases compared: 0 same, 0 explained, 3 different\n" in before
    told = re.fullmatch(r"not finished: (\d+) of (\d+) cases compared: 0 same, .*", after[-1])
    assert told
    assert 3 < int(told[1]) < int(told[2]) == len(cases)
    text = page.read_text()
    for name in ("nowhere/strict_live", "nowhere/strict_ready", "nowhere/strict_rpc_ready"):
        assert f"DIFFERENT {name}\n" in text
    assert text.endswith(f"{after[-1]}\n")
