"""Checks of several processes: memory that crosses, and what a killed process leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import stubserve_stub
from stubserve_stub.device.driver import DriverError

from . import other
from .row import MIB, BrokenError, Gpu, Row, pattern

COMES_BACK_S = 10.0


def across(gpu: Gpu) -> str:
    with other.process("maker") as maker:
        window, offset = maker.take_block(gpu)
        address = window.address(offset, other.BLOCK)
        gpu.expect(address, pattern(other.BLOCK, other.SEED), "what the other process wrote")
        gpu.write(address, b"answered")
        maker.connection.send(b"+")
        if maker.connection.recv(8) != b"answered":
            raise BrokenError("the other process does not see what was written here")
    return f"{other.BLOCK // MIB} MiB of a pool with {window.mapped_bytes // MIB} MiB, read and written"


def killed_maker(gpu: Gpu) -> str:
    with other.process("maker") as maker:
        window, offset = maker.take_block(gpu)
        maker.popen.kill()
        maker.popen.wait()
        gpu.expect(window.address(offset, other.BLOCK), pattern(other.BLOCK, other.SEED), "after the kill")
    return ""


def killed_makers(gpu: Gpu) -> str:
    """The memory of killed processes comes back; a driver may take a moment, and keep a little."""
    descriptors = len(os.listdir("/proc/self/fd"))
    free = []
    for _ in range(4):
        with other.process("maker") as maker:
            window, _ = maker.take_block(gpu)
            maker.popen.kill()
            maker.popen.wait()
            window.close()
        # The first round may have the driver make what it keeps.
        end = time.monotonic() + COMES_BACK_S
        while free and (now := gpu.device.free_memory()) + other.BLOCK <= free[0]:
            if time.monotonic() > end:
                raise BrokenError(f"free memory fell from {free[0]} to {now} bytes and stays there")
            time.sleep(0.05)
        free.append(gpu.device.free_memory())
    if len(os.listdir("/proc/self/fd")) > descriptors:
        raise BrokenError("descriptors are left open")
    return f"{len(free)} kills; free memory after the first {free[0] // MIB}, after the last {free[-1] // MIB} MiB"


def client_handle(gpu: Gpu) -> str:
    with other.process("client") as client:
        handle = client.connection.recv(64)
        address = gpu.device.open_handle(handle)
        gpu.expect(address, pattern(MIB, other.SEED), "the client's memory")
        gpu.device.close_handle(address)
        client.popen.kill()
        client.popen.wait()
    try:
        gpu.device.open_handle(handle)
    except DriverError as error:
        return f"after the client's end: {error.name}"
    raise BrokenError("the handle of a dead process was opened")


def told_to_a_server(gpu: Gpu) -> str:
    """What a server asks, which loads no driver itself."""
    path = str(Path(stubserve_stub.__file__).parents[1])
    command = [sys.executable, "-m", "stubserve_stub.device"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokenError(f"the process ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    numbers = [device["number"] for device in json.loads(done.stdout).get("devices", [])]
    if numbers != [facts.number for facts in gpu.cuda.devices()]:
        raise BrokenError(f"the process told {done.stdout}")
    return f"{len(numbers)} GPUs"


ROWS = [
    Row("a process of its own tells a server which GPUs there are", told_to_a_server),
    Row("another process maps a pool by its descriptors, and both see what either writes", across),
    Row("a killed process takes nothing from those that have mapped its pool", killed_maker),
    Row("killed processes leave no memory and no descriptor behind", killed_makers),
    Row("a client's memory is opened by its handle", client_handle),
]
