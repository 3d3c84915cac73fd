"""Judges two servers' outcomes and prints them: the differences one by one, then a table per topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """The verdict of every case, and the lines to print about those that are not the same."""

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


def judge(cases: Sequence[Case], oracle: Mapping[str, Outcome], ours: Mapping[str, Outcome], verbose: bool) -> Report:
    """Compares the outcomes case by case. A case accepted as different must differ, and as promised."""
    report = Report()
    for case in cases:
        left, right = oracle[case.name], ours[case.name]
        accepted = ACCEPTED.get(case.name)
        if same(left, right):
            stale = accepted is not None and not accepted.sometimes
            why = "listed as a difference, but the answers are the same" if stale else ""
            verdict = "different" if stale else "same"
        elif accepted:
            why = broken_promise(accepted, case.name, right)
            verdict = "different" if why else "explained"
        else:
            verdict, why = "different", ""
        report.verdicts[case.name] = verdict
        if verdict == "different" or (verbose and verdict == "explained"):
            report.lines.append(f"{verdict.upper()} {case.name}" + (f"  ({case.note})" if case.note else ""))
            if why or (accepted and verdict == "explained"):
                report.lines.append(f"    {why or (accepted and accepted.reason)}")
            if NOT_STARTED in (left.get("server"), right.get("server")):
                report.lines.append("    its server did not start, see above")
                continue
            for path, one, other in differences(left, right):
                report.lines.append(f"    {path}")
                report.lines.append(f"      triton    {_short(one)}")
                report.lines.append(f"      stubserve {_short(other)}")
        elif verbose:
            report.lines.append(f"same {case.name}")
    return report


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
