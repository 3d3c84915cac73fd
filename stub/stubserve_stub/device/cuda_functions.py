"""The functions of CUDA's driver, found by name in libcuda.so.1 and called with their errors checked.

Each function has had several forms. The driver is asked for a form by the version of CUDA that brought it
(`cuGetProcAddress`), so a newer driver gives the same form for ever. The driver has to know `cuGetProcAddress`, as
those for CUDA 11.3 and later do. `FUNCTIONS` has what stubs use and no more; a module that needs another function names
it in the same manner (`Functions.find`). A test compares the table with NVIDIA's header.

A call costs about 1 µs more than the function.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any, Callable, Dict, Tuple, Type

from stubserve_stub.device.driver import DeviceLost, DriverError, NoDriver, NotSupported, OutOfDeviceMemory

# Names another library in place of the driver, for tests; empty, there is none.
LIBRARY_VARIABLE = "STUBSERVE_CUDA_DRIVER"
LIBRARY = "libcuda.so.1"

_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
NOT_READY = 600
_NOT_SUPPORTED = 801

# After these, CUDA's manual says, the process has to be ended: its context is corrupt, or its device is gone.
_LOST = frozenset([214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999])


class Location(ctypes.Structure):
    """CUmemLocation"""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationFlags(ctypes.Structure):
    """CUmemAllocationProp.allocFlags"""

    _fields_ = [
        ("compressionType", ctypes.c_ubyte),
        ("gpuDirectRDMACapable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", Location),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", Location), ("flags", c_int)]


class IpcMemoryHandle(ctypes.Structure):
    """CUipcMemHandle"""

    _fields_ = [("reserved", ctypes.c_char * 64)]


# CUdeviceptr and CUmemGenericAllocationHandle are both unsigned long long.
_ADDRESS = c_ulonglong
_HANDLE = c_ulonglong

# name -> (the version of CUDA that brought this form, types of its arguments)
Form = Tuple[int, Tuple[Any, ...]]
FUNCTIONS: Dict[str, Form] = {
    "cuInit": (2000, (c_uint,)),
    "cuDriverGetVersion": (2020, (POINTER(c_int),)),
    "cuGetErrorName": (6000, (c_int, POINTER(c_char_p))),
    "cuGetErrorString": (6000, (c_int, POINTER(c_char_p))),
    "cuDeviceGetCount": (2000, (POINTER(c_int),)),
    "cuDeviceGet": (2000, (POINTER(c_int), c_int)),
    "cuDeviceGetName": (2000, (c_char_p, c_int, c_int)),
    "cuDeviceTotalMem": (3020, (POINTER(c_size_t), c_int)),
    "cuDeviceGetAttribute": (2000, (POINTER(c_int), c_int, c_int)),
    "cuDeviceCanAccessPeer": (4000, (POINTER(c_int), c_int, c_int)),
    "cuDevicePrimaryCtxRetain": (7000, (POINTER(c_void_p), c_int)),
    "cuDevicePrimaryCtxRelease": (11000, (c_int,)),
    "cuCtxPushCurrent": (4000, (c_void_p,)),
    "cuCtxPopCurrent": (4000, (POINTER(c_void_p),)),
    "cuCtxSynchronize": (2000, ()),
    "cuMemGetInfo": (3020, (POINTER(c_size_t), POINTER(c_size_t))),
    "cuStreamCreate": (2000, (POINTER(c_void_p), c_uint)),
    "cuStreamDestroy": (4000, (c_void_p,)),
    "cuStreamSynchronize": (2000, (c_void_p,)),
    "cuStreamWaitEvent": (3020, (c_void_p, c_void_p, c_uint)),
    "cuEventCreate": (2000, (POINTER(c_void_p), c_uint)),
    "cuEventDestroy": (4000, (c_void_p,)),
    "cuEventRecord": (2000, (c_void_p, c_void_p)),
    "cuEventQuery": (2000, (c_void_p,)),
    "cuEventSynchronize": (2000, (c_void_p,)),
    "cuMemcpyHtoDAsync": (3020, (_ADDRESS, c_void_p, c_size_t, c_void_p)),
    "cuMemcpyDtoHAsync": (3020, (c_void_p, _ADDRESS, c_size_t, c_void_p)),
    "cuMemcpyDtoDAsync": (3020, (_ADDRESS, _ADDRESS, c_size_t, c_void_p)),
    "cuMemcpyPeerAsync": (4000, (_ADDRESS, c_void_p, _ADDRESS, c_void_p, c_size_t, c_void_p)),
    "cuMemHostRegister": (6050, (c_void_p, c_size_t, c_uint)),
    "cuMemHostUnregister": (4000, (c_void_p,)),
    "cuMemGetAllocationGranularity": (10020, (POINTER(c_size_t), POINTER(AllocationProperties), c_int)),
    "cuMemCreate": (10020, (POINTER(_HANDLE), c_size_t, POINTER(AllocationProperties), c_ulonglong)),
    "cuMemRelease": (10020, (_HANDLE,)),
    "cuMemExportToShareableHandle": (10020, (c_void_p, _HANDLE, c_int, c_ulonglong)),
    "cuMemImportFromShareableHandle": (10020, (POINTER(_HANDLE), c_void_p, c_int)),
    "cuMemAddressReserve": (10020, (POINTER(_ADDRESS), c_size_t, c_size_t, _ADDRESS, c_ulonglong)),
    "cuMemAddressFree": (10020, (_ADDRESS, c_size_t)),
    "cuMemMap": (10020, (_ADDRESS, c_size_t, c_size_t, _HANDLE, c_ulonglong)),
    "cuMemUnmap": (10020, (_ADDRESS, c_size_t)),
    "cuMemSetAccess": (10020, (_ADDRESS, c_size_t, POINTER(AccessDescription), c_size_t)),
    "cuMemGetAddressRange": (3020, (POINTER(_ADDRESS), POINTER(c_size_t), _ADDRESS)),
    "cuIpcOpenMemHandle": (11000, (POINTER(_ADDRESS), IpcMemoryHandle, c_uint)),
    "cuIpcCloseMemHandle": (4010, (_ADDRESS,)),
}


class Functions:
    """The driver's functions: `call(name, ...)` raises the DriverError that its result stands for."""

    def __init__(self) -> None:
        path = os.environ.get(LIBRARY_VARIABLE, LIBRARY)
        if not path:
            raise NoDriver("there is no CUDA driver, as {} says, which is empty".format(LIBRARY_VARIABLE))
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise NoDriver(
                "there is no CUDA driver: {} cannot be loaded ({}). Install NVIDIA's driver; in a container, "
                "start it with its GPUs (--gpus all)".format(path, error)
            ) from None
        self._find = self._finder(library, path)
        self._functions: Dict[str, Callable[..., int]] = {}
        for name, form in FUNCTIONS.items():
            self.find(name, form)

    def find(self, name: str, form: Form) -> None:
        """Makes a function known. Raises NoDriver where the driver does not have it in this form."""
        version, types = form
        address = self._find(name.encode(), version)
        if not address:
            raise NoDriver(
                "the CUDA driver is too old: it has no {} of CUDA {}.{}".format(
                    name, version // 1000, version % 1000 // 10
                )
            )
        self._functions[name] = ctypes.CFUNCTYPE(c_int, *types)(address)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function. Raises a DriverError that names it."""
        code = self._functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def status(self, name: str, *arguments: Any) -> int:
        """Calls a function that answers with its result, which is not only an error."""
        return self._functions[name](*arguments)

    def error(self, function: str, code: int, device: str = "") -> DriverError:
        """The error that the result of a function stands for."""
        name = self._text("cuGetErrorName", code) or "CUDA error {}".format(code)
        text = self._text("cuGetErrorString", code)
        said = "{} failed{} with {}".format(function, device, name) + (" ({})".format(text) if text else "")
        kind: Type[DriverError] = DriverError
        if code == _OUT_OF_MEMORY:
            kind = OutOfDeviceMemory
        elif code == _NOT_SUPPORTED:
            kind = NotSupported
        elif code == _NO_DEVICE:
            kind = NoDriver
        elif code in _LOST:
            kind = DeviceLost
            said += ". The GPU is of no use to this process any more; only another process can use it again"
        return kind(said, function, name)

    def _text(self, function: str, code: int) -> str:
        found = c_char_p()
        if self._functions[function](code, ctypes.byref(found)) or found.value is None:
            return ""
        return found.value.decode()

    @staticmethod
    def _finder(library: ctypes.CDLL, path: str) -> Callable[[bytes, int], Any]:
        """A function from a name and a version to an address, which is None where there is none."""
        found = c_void_p()
        try:
            newer = library.cuGetProcAddress_v2
        except AttributeError:
            try:
                older = library.cuGetProcAddress
            except AttributeError:
                raise NoDriver(
                    "the CUDA driver {} is too old: it has no cuGetProcAddress, which came with CUDA 11.3".format(path)
                ) from None
            older.argtypes = (c_char_p, POINTER(c_void_p), c_int, c_uint64)

            def find(name: bytes, version: int) -> Any:
                return None if older(name, ctypes.byref(found), version, 0) else found.value
        else:
            newer.argtypes = (c_char_p, POINTER(c_void_p), c_int, c_uint64, POINTER(c_int))

            def find(name: bytes, version: int) -> Any:
                status = c_int()
                return None if newer(name, ctypes.byref(found), version, 0, ctypes.byref(status)) else found.value

        return find
