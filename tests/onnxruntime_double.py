"""A double of onnxruntime's sessions on GPUs: the real ones on the CPU, with bindings to memory of emulated GPUs.

A stub finds it on PYTHONPATH as `sitecustomize`. A binding of a session on a GPU takes addresses of the device, which
it reads when the session runs, in no order with other streams; and what is bound to the GPU without an address lies in
memory of its own there.
"""

from __future__ import annotations

from pathlib import Path

SITE = '''
import ctypes
import os
import sys

import numpy as np


def _gpu(number):
    from stubserve_stub.device.gpu import gpu
    return gpu(number)


class Value:
    """An output in memory of its own on a GPU."""

    def __init__(self, number, array):
        from stubserve_stub.wire.arena import address_of

        self._gpu, self._shape = _gpu(number), array.shape
        driver = self._gpu.device.driver
        driver.find("cuMemAlloc", (3020, (ctypes.c_void_p, ctypes.c_size_t)))
        driver.find("cuMemFree", (3020, (ctypes.c_ulonglong,)))
        address = ctypes.c_ulonglong()
        self._gpu.device.call("cuMemAlloc", ctypes.addressof(address), max(array.nbytes, 1))
        self._address = address.value
        if array.nbytes:
            stream = self._gpu.device.stream()
            stream.copy_up(self._address, address_of(array), array.nbytes)
            stream.synchronize()
            stream.close()

    def data_ptr(self):
        return self._address

    def shape(self):
        return list(self._shape)

    def __del__(self):
        self._gpu.device.call("cuMemFree", self._address)


class Binding:
    def __init__(self, binding):
        self._binding = binding
        self._inputs, self._outputs, self._on_gpu = {}, [], {}
        self._kept = []

    def bind_input(self, name, device, number, kind, shape, address):
        assert device == "cuda", "on a GPU all inputs are there"
        self._inputs[name] = (number, kind, tuple(shape), address)

    def bind_output(self, name, device="cpu", number=0, kind=None, shape=None, address=None):
        self._outputs.append(name)
        if device == "cuda":
            assert address is None
            self._on_gpu[name] = number
            self._binding.bind_output(name, "cpu")
        else:
            self._binding.bind_output(name, device, number, kind, shape, address)

    def clear_binding_inputs(self):
        self._inputs.clear()
        self._binding.clear_binding_inputs()

    def clear_binding_outputs(self):
        self._outputs, self._on_gpu = [], {}
        self._binding.clear_binding_outputs()

    def fetch(self):
        from stubserve_stub.wire.arena import address_of

        self._kept = []
        for name, (number, kind, shape, address) in self._inputs.items():
            array = np.empty(shape, kind)
            stream = _gpu(number).device.stream()
            if array.nbytes:
                stream.copy_down(address_of(array), address, array.nbytes)
            stream.synchronize()
            stream.close()
            self._kept.append(array)
            self._binding.bind_input(name, "cpu", 0, kind, shape, array.ctypes.data)

    def synchronize_outputs(self):
        self._binding.synchronize_outputs()

    def get_outputs(self):
        values = self._binding.get_outputs()
        return [
            Value(self._on_gpu[name], np.ascontiguousarray(value.numpy())) if name in self._on_gpu else value
            for name, value in zip(self._outputs, values)
        ]


if os.environ.get("USE_DOUBLES") or any("stubserve_stub" in word for word in sys.orig_argv):
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        real = onnxruntime.InferenceSession

        class Session:
            def __init__(self, path, options, providers):
                self._names = [name for name, _ in providers]
                self._real = real(path, options, providers=["CPUExecutionProvider"])

            def get_providers(self):
                return ["CPUExecutionProvider"] if os.environ.get("DOUBLE_LACKS_CUDA") else self._names

            def disable_fallback(self):
                pass

            def io_binding(self):
                binding = self._real.io_binding()
                return Binding(binding) if "CUDAExecutionProvider" in self._names else binding

            def run_with_iobinding(self, binding, options):
                if isinstance(binding, Binding):
                    binding.fetch()
                    binding = binding._binding
                self._real.run_with_iobinding(binding, options)

            def __getattr__(self, name):
                return getattr(self._real, name)

        onnxruntime.InferenceSession = Session
        names = ("Tensorrt", "CUDA", "CPU")
        onnxruntime.get_available_providers = lambda: [name + "ExecutionProvider" for name in names]
        onnxruntime.preload_dlls = lambda: None
'''


def install(folder: Path) -> Path:
    """The folder for PYTHONPATH."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return site
