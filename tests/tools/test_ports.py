"""Ports that are given stay with whoever asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.ports import free_ports

_IN_ANOTHER_PROCESS = """
import random, sys
from tools import ports
picked = iter(map(int, sys.argv[1:]))
ports.random.choice = lambda _: next(picked)
print(*ports.free_ports(1))
"""


def test_a_port_is_given_once() -> None:
    """Neither to another process nor, with nothing listening on it, to a connection."""
    first, second, third = ports = free_ports(3)
    assert len({*ports}) == 3
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < below
    asked = [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(first), str(second), str(third), "9999"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "9999\n"
