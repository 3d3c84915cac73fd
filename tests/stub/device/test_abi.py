"""The binding and the emulated driver against NVIDIA's own headers, where the CUDA toolkit is installed.

This is what can be known of the real driver without a GPU: names, versions, types and numbers.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from stubserve_stub.device import cuda, cuda_functions
from stubserve_stub.device.cuda_functions import FUNCTIONS, Form

from tests.emulated_gpu import SOURCES, compiler
from tools.gpu_check.functions import CHECKED

INCLUDE = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
needs_headers = pytest.mark.skipif(
    not (INCLUDE / "cudaTypedefs.h").exists(), reason="needs the CUDA toolkit's headers; CUDA_HOME says where they are"
)
EVERY = {**FUNCTIONS, **CHECKED}

# How ctypes' types are written in C. For addresses of something, what that is does not change a call.
IN_C = {
    ctypes.c_int: "int",
    ctypes.c_uint: "unsigned int",
    ctypes.c_size_t: "size_t",
    ctypes.c_ulonglong: "unsigned long long",
    ctypes.c_char_p: "char *",
    ctypes.c_void_p: "void *",
    ctypes.c_float: "float",
    cuda_functions.AllocationProperties: "CUmemAllocationProp",
    cuda_functions.AccessDescription: "CUmemAccessDesc",
    cuda_functions.IpcMemoryHandle: "CUipcMemHandle",
}


def compiles(source: str, folder: Path) -> None:
    """Compiles a program in C that includes cuda.h. Raises AssertionError with what the compiler says."""
    path = folder / "check.c"
    path.write_text(source)
    done = subprocess.run(
        [compiler(), "-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", f"-I{INCLUDE}", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def in_c(kind: Any) -> str:
    if kind in IN_C:
        return IN_C[kind]
    return f"{IN_C[kind._type_]} *"


@needs_headers
def test_every_function_has_this_form_in_this_version(tmp_path: Path) -> None:
    """The size and the kind of each argument are those of the type that NVIDIA gives a function of this version."""
    checks = []
    for name, (version, types) in EVERY.items():
        pfn = f"PFN_{name}_v{version}"
        text = (INCLUDE / "cudaTypedefs.h").read_text()
        declared = re.search(rf"\(CUDAAPI \*{pfn}\)\((.*?)\);", text)
        assert declared, f"there is no {name} of version {version}"
        parameters = [one for one in declared[1].split(", ") if one != "void"]
        assert len(parameters) == len(types), name
        checks.append(f"static {pfn} {name}_;")
        for at, (parameter, kind) in enumerate(zip(parameters, types, strict=True)):
            is_pointer = isinstance(kind, type(ctypes.POINTER(ctypes.c_int))) or kind in (
                ctypes.c_char_p,
                ctypes.c_void_p,
            )
            stripped = re.sub(r"\b\w+$", "", parameter.replace("const ", "")).strip()
            checks.append(f"typedef {stripped} {name}_{at};")
            if is_pointer:
                checks.append(f"static {name}_{at} {name}_{at}_given; static void *{name}_{at}_any;")
                checks.append(f"static void {name}_{at}_fits(void) {{ {name}_{at}_given = {name}_{at}_any; }}")
            else:
                checks.append(f'_Static_assert(sizeof({name}_{at}) == sizeof({in_c(kind)}), "{name} {at}");')
    compiles('#pragma GCC diagnostic ignored "-Wunused"\n#include <cudaTypedefs.h>\n' + "\n".join(checks), tmp_path)


@needs_headers
def test_structures(tmp_path: Path) -> None:
    checks = []
    for structure, name in (
        (cuda_functions.Location, "CUmemLocation"),
        (cuda_functions.AllocationProperties, "CUmemAllocationProp"),
        (cuda_functions.AccessDescription, "CUmemAccessDesc"),
        (cuda_functions.IpcMemoryHandle, "CUipcMemHandle"),
    ):
        checks.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for field, *_ in structure._fields_:
            offset = getattr(structure, field).offset
            checks.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
    compiles("#include <stddef.h>\n#include <cuda.h>\n" + "\n".join(checks), tmp_path)


@needs_headers
def test_numbers(tmp_path: Path) -> None:
    """Those of the binding, and those of the emulated driver's own header."""
    numbers = {
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": cuda._MAJOR,
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": cuda._MINOR,
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": cuda._SUPPORTS_VMM,
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": cuda._SUPPORTS_DESCRIPTORS,
        "CU_MEM_ALLOCATION_TYPE_PINNED": cuda._PINNED,
        "CU_MEM_LOCATION_TYPE_DEVICE": cuda._ON_DEVICE,
        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": cuda._POSIX_DESCRIPTOR,
        "CU_MEM_ALLOC_GRANULARITY_MINIMUM": cuda._MINIMUM_GRANULARITY,
        "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": cuda._READ_WRITE,
        "CU_STREAM_NON_BLOCKING": cuda._NON_BLOCKING,
        "CU_EVENT_DISABLE_TIMING": cuda._NO_TIMING,
        "CU_MEMHOSTREGISTER_PORTABLE": cuda._PORTABLE,
        "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": cuda._LAZY_PEER_ACCESS,
        "CUDA_ERROR_OUT_OF_MEMORY": cuda_functions._OUT_OF_MEMORY,
        "CUDA_ERROR_NO_DEVICE": cuda_functions._NO_DEVICE,
        "CUDA_ERROR_NOT_READY": cuda_functions.NOT_READY,
        "CUDA_ERROR_NOT_SUPPORTED": cuda_functions._NOT_SUPPORTED,
    }
    own = re.findall(r"^    (CU\w+) = (\d+),", (SOURCES / "cuda_abi.h").read_text(), re.MULTILINE)
    assert len(own) > 30
    pairs = [*numbers.items(), *((name, int(number)) for name, number in own)]
    compiles(
        "#include <cuda.h>\n" + "\n".join(f'_Static_assert({name} == {n}, "{name}");' for name, n in pairs), tmp_path
    )


@needs_headers
@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.c")), ids=lambda path: path.name)
def test_the_emulated_driver_has_the_functions_that_nvidia_declares(path: Path) -> None:
    flags = ["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", "-DWITH_CUDA_HEADER", f"-I{INCLUDE}"]
    done = subprocess.run([compiler(), *flags, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("table", [FUNCTIONS, CHECKED], ids=["stubs", "check"])
def test_versions_are_versions(table: dict[str, Form]) -> None:
    """A version of CUDA is a thousand times its major, and ten times its minor number."""
    assert {version % 10 for version, _ in table.values()} == {0}
    assert all(2000 <= version <= 11030 for version, _ in table.values())
