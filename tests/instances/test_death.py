"""Causes of death, of processes that really died that way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stubserve.instances.death import cause_of_death, oom_kills


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import os; os._exit(0)", "it exited with code 0"),
        ("import os; os._exit(7)", "it exited with code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it was killed by signal 9 (SIGKILL)"),
        ("import os; os.abort()", "it was killed by signal 6 (SIGABRT)"),
        ("import ctypes; ctypes.string_at(0)", "it was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_causes(program: str, text: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    assert cause_of_death(done.returncode, oom_kills()).startswith(text)


def test_a_kill_for_lack_of_memory_is_told_apart() -> None:
    # The kernel's counter cannot be moved at will; a count from before that is lower looks the same.
    assert "out of memory" in cause_of_death(-9, oom_kills() - 1)
    assert "out of memory" not in cause_of_death(-9, oom_kills())
