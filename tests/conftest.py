"""Fixtures that every test may use."""

from __future__ import annotations

import asyncio
import compileall
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from stubserve.connections import open_connections, slow_clients
from tests.clock import Clock
from tests.http.arena import Memory

ROOT = Path(__file__).parents[1]

# Servers and stubs find byte code (see `pytest_configure`) and write none: a model that is written again within the
# same second, with as many characters, would be taken from the byte code of the one before. Tests keep their own.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False

# Tests run as on a machine without GPUs, but for those that name an emulated driver.
os.environ["STUBSERVE_CUDA_DRIVER"] = ""

# A thread that numpy's BLAS starts when it is imported runs in a circle for a fortieth of a second before it sleeps, in
# each of thousands of stubs. Two to the power of this is how many ticks it does so.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# The same examples in every run, so that a change is judged by what it changes. Others are tried by
# `make test ARGS=--hypothesis-profile=search`; what that finds becomes an `@example` of its test.
# No example has a deadline: on a busy machine any may take long.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--most-skips", type=int, help="Fail where more tests than this, or modules as a whole, are skipped."
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m long` and `-m slow` import only the files that have the mark: all take seconds of each process."""
    mark = config.getoption("markexpr")
    if (
        mark in ("long", "slow")
        and collection_path.suffix == ".py"
        and f"mark.{mark}" not in collection_path.read_text()
    ):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays, so the garbage collector need not look at it, then or later. It takes a fifth of the
    time of the collection, which each process does for itself.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What is skipped is not checked, so where all has to be checked there are no more skips than are known."""
    most, reporter = session.config.getoption("--most-skips"), _reporter(session.config)
    if most is not None and reporter is not None and len(reporter.stats.get("skipped", ())) > most:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    most = config.getoption("--most-skips")
    if most is not None:
        skipped = len(terminalreporter.stats.get("skipped", ()))
        terminalreporter.write_line(f"{skipped} tests or modules were skipped; {most} may be.", red=skipped > most)


def _reporter(config: pytest.Config) -> pytest.TerminalReporter | None:
    """None in the processes that only run tests."""
    return config.pluginmanager.get_plugin("terminalreporter")


def pytest_configure(config: pytest.Config) -> None:
    """Compiles what servers and stubs import, once: hundreds of servers are started, and without byte code a start
    takes half as much processor time again.
    """
    if not hasattr(config, "workerinput"):
        for folder in ("src", "stub"):
            compileall.compile_dir(ROOT / folder, quiet=2)


def pytest_xdist_auto_num_workers() -> int:
    """Tests wait about as long as they compute, so there are two processes for a processor."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty model repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def memory() -> Iterator[Memory]:
    """An arena, for a test that gives back all that it takes."""
    found = Memory()
    yield found
    assert found.allocator.live_blocks == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that connections and the event loop go by."""
    clock = Clock()
    monkeypatch.setattr(slow_clients, "monotonic", clock)
    monkeypatch.setattr(open_connections, "monotonic", clock)
    loop = SimpleNamespace(get_running_loop=lambda: clock, TimerHandle=asyncio.TimerHandle)
    monkeypatch.setattr(slow_clients, "asyncio", loop)
    return clock
