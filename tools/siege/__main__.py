"""Shows that nobody starves: every kind of hostile client alone, then all at once. `python -m tools.siege`.

A line each: what polite clients saw meanwhile, how much memory the server took, and whether it was whole afterwards.
Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.bench.servers import ServerError

from . import cores, fort, models
from .fort import Memory
from .hostile import KINDS, Hostile
from .polite import Crowd, Record

P99_MS = 50.0
REFUSED_S = 5.0
# What the parent may have beside --shm-limit, and what its own memory may rise by for a moment
ABOVE_LIMIT_MIB = 150.0
RISE_MIB = 150.0
NOBODY, ALL = "nobody", "all at once"

TITLES = (
    "hostile", "attempts",
    "small p50", "p99", "max ms", "failed",
    "gRPC p99", "max ms", "failed",
    "health p99", "max ms", "failed",
    "4 MiB ok", "failed", "refused s",
    "RSS peak", "after", "own rest", "peak", "after", "whole s", "fds left",
    "missed",
)  # fmt: skip


@dataclass
class Round:
    """What one siege showed. The parent's memory before it, at its peak, and afterwards."""

    name: str
    attempts: int
    tallies: dict[str, dict[str, int]]
    records: dict[str, Record]
    rest: Memory
    peak: Memory
    after: Memory
    whole_s: float | None
    descriptors_left: list[str]

    @property
    def faults(self) -> list[str]:
        """What is wrong whatever the machine: answers, memory and descriptors."""
        found = []
        if wrong := sum(record.wrong for record in self.records.values()):
            found.append(f"{wrong} wrong answers")
        if self.whole_s is None:
            found.append("half of the arena is never given back")
        if self.descriptors_left:
            found.append(f"descriptors are left open: {', '.join(self.descriptors_left)}")
        return found

    @property
    def rise(self) -> float:
        """What the parent's own memory rose by, at its peak."""
        return self.peak.own - self.rest.own

    @property
    def missed(self) -> list[str]:
        """The targets that this round misses, in words."""
        found = []
        for name in ("small", "grpc", "health"):
            p99 = self.records[name].percentile(99)
            if not p99 < P99_MS:
                found.append(f"{name} p99 {p99:.0f} ms, not under {P99_MS:.0f}")
        large = self.records["large"]
        if large.longest_refused_s > REFUSED_S or not large.answered:
            found.append(f"4 MiB refused for {large.longest_refused_s:.1f} s, of which {REFUSED_S:.0f} may be")
        bound = fort.SHM_LIMIT / fort.MIB + ABOVE_LIMIT_MIB
        if self.peak.resident > bound:
            found.append(f"RSS {self.peak.resident:.0f} MiB, over {bound:.0f}")
        if self.rise > RISE_MIB:
            found.append(f"the parent's own memory rose by {self.rise:.0f} MiB, of which {RISE_MIB:.0f} may be")
        return found + self.faults

    def cells(self) -> list[str]:
        small, grpc, health, large = (self.records[name] for name in ("small", "grpc", "health", "large"))
        return [
            self.name, str(self.attempts),
            f"{small.percentile(50):.1f}", f"{small.percentile(99):.0f}", f"{small.worst_ms:.0f}", str(small.failed),
            f"{grpc.percentile(99):.0f}", f"{grpc.worst_ms:.0f}", str(grpc.failed),
            f"{health.percentile(99):.0f}", f"{health.worst_ms:.0f}", str(health.failed),
            str(large.answered), str(large.failed), f"{large.longest_refused_s:.1f}",
            f"{self.peak.resident:.0f}", f"{self.after.resident:.0f}",
            f"{self.rest.own:.0f}", f"{self.peak.own:.0f}", f"{self.after.own:.0f}",
            "never" if self.whole_s is None else f"{self.whole_s:.1f}", str(len(self.descriptors_left)),
            "; ".join(self.missed) or "-",
        ]  # fmt: skip


def main() -> None:
    options = parse_arguments()
    # Who ends this ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("siege ended"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(line(TITLES), flush=True)
    rounds: list[Round] = []
    try:
        with cores.Cores() as shared:
            if shared.idle is None:
                print(cores.NOT_PERMITTED, flush=True)
            for name, kinds in options.sieges:
                rounds.append(besiege(name, kinds, options.seconds, shared.idle))
                print(line(rounds[-1].cells()), flush=True)
                if options.verbose:
                    print(explained(rounds[-1]), flush=True)
    except ServerError as error:
        sys.exit(f"siege stopped: {error}")
    missed = [f"{one.name}: {what}" for one in rounds if one.name != NOBODY for what in one.missed]
    print("\n" + ("\n".join(f"missed: {text}" for text in missed) or "all targets met"))
    sys.exit(1 if missed else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.siege", description="Besieges a stubserve of its own.")
    parser.add_argument("--seconds", type=float, default=8, help="length of each siege (default: %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        choices=[NOBODY, *KINDS, "all"],
        metavar="KIND",
        help=f"only this one; may be given several times. One of {NOBODY}, {', '.join(KINDS)}, all",
    )
    parser.add_argument("--verbose", action="store_true", help="show what attackers did and how requests failed")
    options = parser.parse_args()
    if options.seconds < 1:
        parser.error("--seconds must be at least 1")
    known = {NOBODY: (NOBODY, []), **{kind: (kind, [kind]) for kind in KINDS}, "all": (ALL, list(KINDS))}
    options.sieges = [known[name] for name in options.only or known]
    return options


def besiege(name: str, kinds: list[str], seconds: float, attackers_group: Path | None = None) -> Round:
    """One siege of a fresh server, its attackers in a control group if there is one.

    Raises ServerError when it does not start, or does not survive.
    """
    with tempfile.TemporaryDirectory(prefix="stubserve-siege-") as folder:
        models.write(Path(folder, "models"))
        with fort.server(Path(folder, "models"), Path(folder, "server.log")) as server:
            ports = server.http_port, server.grpc_port
            if fort.until_whole(server.http_port) is None:
                raise ServerError(f"half of the arena cannot be had from the start:\n{server.log_tail()}")
            fort.use_everything(server.http_port)
            with fort.Watch(server.pid) as watch:
                descriptors, rest = watch.descriptors(), watch.sample()
                with contextlib.ExitStack() as hostile:
                    begun = [Hostile(kind, *ports, attackers_group) for kind in kinds]
                    attackers = [hostile.enter_context(one) for one in begun]
                    for attacker in attackers:
                        attacker.attack()
                    crowd = hostile.enter_context(Crowd(*ports))
                    time.sleep(seconds)
                    # What is told of the siege is what was seen while it lasted.
                    crowd.stop()
                    for attacker in attackers:
                        attacker.stop()
                peak = watch.peak
                server.require_alive()
                whole_s = fort.until_whole(server.http_port)
                left = fort.until_closed(watch, descriptors)
                after = watch.sample()
    tallies = {attacker.kind: attacker.tally for attacker in attackers}
    attempts = sum(n for tally in tallies.values() for what, n in tally.items() if what.isidentifier())
    return Round(name, attempts, tallies, crowd.records, rest, peak, after, whole_s, left)


def line(cells: list[str] | tuple[str, ...]) -> str:
    widths = [max(len(title), 5) for title in TITLES]
    widths[0] = 12
    first, *middle, last = cells
    return "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(middle, widths[1:], strict=False)), last])


def explained(one: Round) -> str:
    lines = [f"    {kind}: {tally}" for kind, tally in one.tallies.items()]
    lines += [f"    {name} failed: {record.failures}" for name, record in one.records.items() if record.failed]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
