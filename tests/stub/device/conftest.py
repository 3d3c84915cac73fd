from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stubserve_stub.device.cuda import Cuda, Device
from stubserve_stub.device.cuda_functions import LIBRARY_VARIABLE

from tests.emulated_gpu import Emulator, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def emulator(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The driver of this process and its children: a copy, and so with a state of its own for each test."""
    library = Path(shutil.copy(built, tmp_path))
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    return Emulator(library)


@pytest.fixture
def cuda(emulator: Emulator) -> Cuda:
    return Cuda()


@pytest.fixture
def device(cuda: Cuda, emulator: Emulator) -> Iterator[Device]:
    """The first device. A test leaves nothing of it behind."""
    device = cuda.open(0)
    yield device
    device.close()
    assert emulator.live() == {}
