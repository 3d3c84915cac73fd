"""The program of a worker, which the server starts: its arguments are a name for people, and descriptors."""

from __future__ import annotations

import sys

from stubserve.ingress.process import run

if __name__ == "__main__":
    run(*map(int, sys.argv[2:]))
