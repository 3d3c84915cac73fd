"""The command line of the conformance suite; exits with 1 on any difference that is not explained."""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from . import differences
from .cases import CASES
from .report import Report, answer_lines
from .request import Case
from .run import Outcome, outcomes, say
from .servers import NAMES, SETUPS


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", choices=NAMES, help="run one server only and compare nothing")
    parser.add_argument("--filter", default="", help="run the cases whose name matches this regular expression")
    parser.add_argument("--setups", default=",".join(SETUPS), help="run the cases of these servers' setups (all)")
    parser.add_argument("--verbose", action="store_true", help="also name the cases that agree or are explained")
    parser.add_argument("--record", action="store_true", help="print what each server answered")
    parser.add_argument("--save", type=Path, metavar="FILE", help="with --only: keep the answers in FILE (JSON)")
    parser.add_argument("--oracle", type=Path, metavar="FILE", help="take real Triton's answers from a --save FILE")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report to FILE")
    parser.add_argument("--write-differences", action="store_true", help=f"write {differences.PAGE.name} and stop")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    if options.write_differences:
        differences.PAGE.write_text(differences.page())
        return 0
    cases = [
        case for case in CASES if re.search(options.filter, case.name) and case.server in options.setups.split(",")
    ]
    if not cases:
        print(f"no case matches {options.filter!r}", file=sys.stderr)
        return 2
    results: dict[str, dict[str, Outcome]] = {name: {} for name in NAMES}
    if options.oracle:
        results["triton"] = json.loads(options.oracle.read_text())
        missing = [case.name for case in cases if case.name not in results["triton"]]
        if missing:
            print(f"{options.oracle} has no answers for {len(missing)} cases, such as {missing[0]}", file=sys.stderr)
            return 2
    report = Report(options.verbose)
    try:
        _play(cases, options, results, report)
    finally:
        # Whatever has ended it, what was compared is worth knowing.
        if options.only:
            _save(options, results[options.only])
        else:
            _finish(options, report, len(cases))
    return int(report.failed)


def _play(
    cases: Sequence[Case], options: argparse.Namespace, results: dict[str, dict[str, Outcome]], report: Report
) -> None:
    """Asks the servers, all cases of a setup the one and then the other, and says at once what differs."""
    by_setup: dict[str, list[Case]] = {}
    for case in cases:
        by_setup.setdefault(case.server, []).append(case)
    asked = [options.only] if options.only else [name for name in NAMES if not results[name]]
    for setup, some in by_setup.items():
        for name in asked:
            with closing(outcomes(name, setup, some)) as answered:
                for case, outcome in answered:
                    results[name][case.name] = outcome
                    if options.record:
                        print(f"{name}: {answer_lines(case, outcome)}", flush=True)
                    if name == "stubserve" and not options.only:
                        for line in report.judge(case, results["triton"][case.name], outcome):
                            print(line, flush=True)
        if not options.only:
            say(report.summary(len(cases)))


def _save(options: argparse.Namespace, answers: dict[str, Outcome]) -> None:
    if options.save:
        options.save.write_text(json.dumps(answers, indent=1, sort_keys=True))


def _finish(options: argparse.Namespace, report: Report, planned: int) -> None:
    ending = ["", report.table()]
    if len(report.verdicts) < planned:
        ending.append(f"not finished: {report.summary(planned)}")
    print("\n".join(ending), flush=True)
    if options.report:
        options.report.write_text("\n".join([*report.lines, *ending]) + "\n")


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # answers may hold lone surrogates
    # Ended by ctrl-C, `timeout` or a CI runner it stops the servers that it started, and says what it has.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _leave)
    sys.exit(main())
