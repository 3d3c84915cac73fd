"""A double of the few calls of torch that reach a GPU, on emulated ones: the real torch computes, on the CPU.

A stub finds it on PYTHONPATH as `sitecustomize`. Tensors come from memory of a GPU by DLPack. Results of TorchScript
say that they are on the GPU of the model, and have an address there.
"""

from __future__ import annotations

from pathlib import Path

SITE = '''
import ctypes
import os
import sys
import types

import numpy as np


def _gpu(number):
    from stubserve_stub.device.gpu import gpu
    return gpu(number)


def prepare(torch):
    from stubserve_stub.api import dlpack
    from stubserve_stub.backends.pytorch import saved
    from stubserve_stub.wire.arena import address_of
    from stubserve_stub.wire.datatypes import BY_NUMBER

    class OnGpu(torch.Tensor):
        """A result on a GPU. Its address is asked for only where it stays there."""

        __torch_function__ = torch._C._disabled_torch_function_impl
        is_cpu = property(lambda self: False)
        is_cuda = property(lambda self: True)
        device = property(lambda self: types.SimpleNamespace(index=self.number))

        def data_ptr(self):
            gpu, array = _gpu(self.number), self.as_subclass(torch.Tensor).numpy()
            driver = gpu.device.driver
            driver.find("cuMemAlloc", (3020, (ctypes.c_void_p, ctypes.c_size_t)))
            address = ctypes.c_ulonglong()
            gpu.device.call("cuMemAlloc", ctypes.addressof(address), max(array.nbytes, 1))
            # As a framework's work: in a stream of its own, and not waited for
            self.stream = gpu.device.stream()
            if array.nbytes:
                self.stream.copy_up(address.value, address_of(array), array.nbytes)
            return address.value

        def cpu(self):
            return self.as_subclass(torch.Tensor)

    def from_dlpack(capsule):
        kind, number = dlpack.device_of(capsule)
        assert kind == 2, "not of a GPU"
        datatype, memory = dlpack.imported(capsule)
        found = np.empty(memory.shape, BY_NUMBER[datatype].numpy)
        if found.nbytes:
            stream = _gpu(number).device.stream()
            stream.copy_down(address_of(found), address_of(memory), found.nbytes)
            stream.synchronize()
        return torch.from_numpy(found)

    real_load, real_program = torch.jit.load, saved.load_torchscript

    def load_torchscript(package, path, device):
        program = real_program(package, path, device)
        number = int(str(device).partition(":")[2] or -1)

        def there(value):
            if isinstance(value, (tuple, list)):
                return type(value)(there(one) for one in value)
            made = value.as_subclass(OnGpu)
            made.number = number
            return made

        return program if number < 0 else program._replace(call=lambda *given: there(program.call(*given)))

    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 2
    torch.from_dlpack = from_dlpack
    torch.jit.load = lambda path, map_location=None: real_load(path)
    saved.load_torchscript = load_torchscript


if os.environ.get("USE_DOUBLES") or any("stubserve_stub" in word for word in sys.orig_argv):
    try:
        import torch
    except ImportError:
        pass
    else:
        prepare(torch)
'''


def install(folder: Path) -> Path:
    """The folder for PYTHONPATH."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return site
