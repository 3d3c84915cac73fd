"""Which Python a server's own code or its models run in, and how fast that build is.

A build without profile-guided optimisation runs the same code 10 to 30 % slower. What configure was told is recorded
in sysconfig, but not by every distribution: Debian trains its builds in a way that leaves no trace there. So a fixed
loop is timed as well.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

SCRIPT = """
import platform, sysconfig, timeit
import numpy
flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
pgo = "--enable-optimizations" in flags
lto = "--with-lto" in flags
loop = "s = 0\\nfor i in range(100000): s += i * i % 7"
best = min(timeit.repeat(loop, number=1, repeat=9)) * 1000
print(f"Python {platform.python_version()} (configured {'with' if pgo else 'without'} --enable-optimizations, "
      f"{'with' if lto else 'without'} --with-lto; a loop of 100,000 takes {best:.1f} ms), numpy {numpy.__version__}")
"""


def describe(python: str, environment: Mapping[str, str]) -> str:
    shown = subprocess.run([python, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return shown.stdout.strip()
