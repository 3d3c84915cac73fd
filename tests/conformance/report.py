"""Judges two servers' outcomes, case by case, and puts them into words: each difference, and a table per topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .accepted import ACCEPTED
from .compare import differences, same
from .differences import broken_promise
from .request import Case
from .run import NOT_STARTED, Outcome

WIDTH = 300
VERDICTS = ("same", "explained", "different")


@dataclass
class Report:
    """The verdict of every case that was compared, and the lines to print about those that are not the same.

    `verbose` has lines about the others, too.
    """

    verbose: bool = False
    verdicts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return "different" in self.verdicts.values()

    def table(self) -> str:
        """Cases per topic and verdict."""
        counts: dict[str, Counter[str]] = {}
        for name, verdict in self.verdicts.items():
            counts.setdefault(name.partition("/")[0], Counter())[verdict] += 1
        rows = [f"{'topic':<16}{'cases':>7}" + "".join(f"{verdict:>11}" for verdict in VERDICTS)]
        for topic, count in [*counts.items(), ("total", sum(counts.values(), Counter()))]:
            cells = "".join(f"{count[verdict]:>11}" for verdict in VERDICTS)
            rows.append(f"{topic:<16}{count.total():>7}" + cells)
        return "\n".join(rows)

    def summary(self, planned: int) -> str:
        """How far it is, of so many cases: `12 of 40 cases compared: 10 same, 2 explained, 0 different`."""
        counts = Counter(self.verdicts.values())
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
        return f"{counts.total()} of {planned} cases compared: {verdicts}"

    def judge(self, case: Case, oracle: Outcome, ours: Outcome) -> list[str]:
        """Compares the outcomes of a case, and gives its lines. One accepted as different must differ, as promised."""
        accepted = ACCEPTED.get(case.name)
        if same(oracle, ours):
            stale = accepted is not None and not accepted.sometimes
            why = "listed as a difference, but the answers are the same" if stale else ""
            verdict = "different" if stale else "same"
        elif accepted:
            why = broken_promise(accepted, case.name, ours)
            verdict = "different" if why else "explained"
        else:
            verdict, why = "different", ""
        self.verdicts[case.name] = verdict
        lines = list(self._lines(case, verdict, why or (accepted.reason if accepted else ""), oracle, ours))
        self.lines += lines
        return lines

    def _lines(self, case: Case, verdict: str, why: str, oracle: Outcome, ours: Outcome) -> Iterator[str]:
        if verdict == "same" or (verdict == "explained" and not self.verbose):
            if self.verbose:
                yield f"same {case.name}"
            return
        yield f"{verdict.upper()} {case.name}" + (f"  ({case.note})" if case.note else "")
        if why:
            yield f"    {why}"
        if NOT_STARTED in (oracle.get("server"), ours.get("server")):
            yield "    its server did not start, see above"
            return
        for path, one, other in differences(oracle, ours):
            yield f"    {path}"
            yield f"      triton    {_short(one)}"
            yield f"      stubserve {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}... ({len(text)} characters)"


def answer_lines(case: Case, result: Outcome) -> str:
    """What one server answered to a case, for reading."""
    lines = [case.name + (f"  ({case.note})" if case.note else "")]
    for step in result["steps"]:
        for answer in step if isinstance(step, list) else [step]:
            for response in answer["responses"]:
                rest = {key: value for key, value in response.items() if key not in ("status", "headers")}
                lines.append(f"    {response['status']} {_short(rest)}  {_short(response['headers'])}")
            if answer["ending"] != "read":
                lines.append(f"    [{answer['ending']}]")
    lines += [f"    {key}: {_short(value)}" for key, value in result.items() if key != "steps"]
    return "\n".join(lines)
