"""The functions of CUDA's driver that the check needs and stubs do not."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_float, c_size_t, c_uint, c_ulonglong, c_void_p

from stubserve_stub.device.cuda_functions import Form, IpcMemoryHandle

CHECKED: dict[str, Form] = {
    "cuMemAlloc": (3020, (POINTER(c_ulonglong), c_size_t)),
    "cuMemFree": (3020, (c_ulonglong,)),
    "cuIpcGetMemHandle": (4010, (POINTER(IpcMemoryHandle), c_ulonglong)),
    "cuEventElapsedTime": (2000, (POINTER(c_float), c_void_p, c_void_p)),
    "cuModuleLoadData": (2000, (POINTER(c_void_p), c_char_p)),
    "cuModuleGetFunction": (2000, (POINTER(c_void_p), c_void_p, c_char_p)),
    "cuModuleUnload": (2000, (c_void_p,)),
    "cuLaunchKernel": (4000, (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p))),
}
