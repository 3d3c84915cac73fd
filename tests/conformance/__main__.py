"""The command line of the conformance suite; exits with 1 on any difference that is not explained."""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
import sys
from pathlib import Path

from . import differences
from .cases import CASES
from .report import answer_lines, judge
from .run import Outcome, outcomes
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
    results: dict[str, dict[str, Outcome]] = {}
    if options.oracle:
        results["triton"] = json.loads(options.oracle.read_text())
        missing = [case.name for case in cases if case.name not in results["triton"]]
        if missing:
            print(f"{options.oracle} has no answers for {len(missing)} cases, such as {missing[0]}", file=sys.stderr)
            return 2
    for name in [options.only] if options.only else [name for name in NAMES if name not in results]:
        results[name] = {}
        for case, outcome in outcomes(name, cases):
            results[name][case.name] = outcome
            if options.record:
                print(f"{name}: {answer_lines(case, outcome)}", flush=True)
    if options.save and options.only:
        options.save.write_text(json.dumps(results[options.only], indent=1, sort_keys=True))
    if options.only:
        return 0
    report = judge(cases, results["triton"], results["stubserve"], options.verbose)
    text = "\n".join([*report.lines, "", report.table()])
    print(text)
    if options.report:
        options.report.write_text(text + "\n")
    return int(report.failed)


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # answers may hold lone surrogates
    # A terminated run must still stop the servers it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
