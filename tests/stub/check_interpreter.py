# ruff: noqa: E402  the first thing is to hide msgpack
"""Run by test_interpreters.py in each interpreter: the stub's code at work, with numpy and nothing else installed.

Keeps to Python 3.8. Prints one line per check; any failure ends it with a traceback.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import pkgutil
import struct
import sys
import types
import weakref

sys.modules["msgpack"] = None  # type: ignore[assignment]

import c_python_backend_utils
import numpy as np
import stubserve_stub
import triton_python_backend_utils as pb_utils
from recorded import ANSWERS, HELPERS
from stubserve_stub.api import logger
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python import model
from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.runtime.failure import format_exception
from stubserve_stub.runtime.outputs import InlinePlacer
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Grant, Ledger
from stubserve_stub.wire.layout import RING_BYTES
from stubserve_stub.wire.options import NO_OPTIONS, RequestOptions
from stubserve_stub.wire.ring import RingReader, RingWriter
from stubserve_stub.wire.stub_arena import StubArena

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])
HAS_DLPACK = NUMPY >= (1, 22)


def raised(function):
    """The exception that the function raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def check_public_networks():
    """Python's versions do not agree about these."""
    allow = Networks("public", "").allow
    for number in ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2620:4f:8000::1"):
        assert allow(number), number
    for number in (
        "192.0.0.192", "192.0.0.9", "192.88.99.1", "64:ff9b:1::1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1",
        "fec0::1", "2001:1::1", "2001:20::1", "3fff::1", "5f00::1", "ff0e::1", "2002:7f00:1::1", "224.0.0.1",
    ):  # fmt: skip
        assert not allow(number), number


def check_recorded():
    names = {"np": np, "pb_utils": pb_utils, "c": c_python_backend_utils}
    exec(HELPERS, names)
    for expression, expected in ANSWERS:
        if not HAS_DLPACK and ("dlpack" in expression or "counts(" in expression):
            continue
        if NUMPY < (1, 25) and "np.from_dlpack" in expression:
            continue  # not yet there, or without bool
        try:
            got = repr(eval(expression, names))
        except Exception as error:
            text = str(error).split("\n")[0] if isinstance(error, TypeError) else str(error)
            got = f"{type(error).__name__}: {text}"
        assert got == expected, (expression, got, expected)


def received(id, options, tensor):
    request = object.__new__(InferenceRequest)
    request._set(id, options, None, ["OUT"], [tensor], None, None)
    return request


def check_stacking():
    memory = bytearray(32768)
    requests = [
        received("", NO_OPTIONS, Tensor._received("X", 11, [1, 4096], None, memoryview(memory)[at : at + 16384]))
        for at in (0, 16384)
    ]
    batch = pb_utils.stack(requests, "X")
    batch[1] = 3
    assert batch.shape == (2, 4096)
    assert not any(memory)
    second = pb_utils.unstack(requests, {"Y": batch})[1]
    assert second.output_tensors()[0].as_numpy().tolist() == [[3] * 4096]


def check_request():
    tensor = Tensor._received("IN", 11, (1, 2), struct.pack("<2f", 1, 2), None)
    request = received("r", RequestOptions(5, 1, 0, 0, {"a": 1.5}), tensor)
    array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    array *= 2
    assert array.tolist() == [[2.0, 4.0]]
    assert (request.request_id(), request.correlation_id(), request.parameters()) == ("r", 5, '{"a":1.5}')
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), pb_utils.Tensor("EXTRA", array)])
    wire = response._encode(request._requested_output_names, InlinePlacer())
    assert wire == (None, [("OUT", 11, (1, 2), array.tobytes())], None)
    (output,) = response.output_tensors()
    assert output._payload()[2] is array


def check_arena():
    arena = Arena.create(Ledger(1 << 22))
    offset = Allocator(arena, 0, 1 << 20).allocate(4096)
    other = StubArena(arena.fd, arena.facts(), 1, Grant())
    other.make_writable(offset, 4096)
    arena.view(offset, 4096)[:] = np.arange(1024, dtype=np.float32).tobytes()
    tensor = Tensor._received("IN", 11, (1024,), None, other.view(offset, 4096))
    array = tensor.as_numpy()
    array[0] = 7
    assert bytes(arena.view(offset, 4)) == struct.pack("<f", 7)
    part, watch = array[5:], tensor._watch()
    del tensor, array
    gc.collect()
    assert watch() is not None
    assert part[0] == 5
    del part
    gc.collect()
    assert watch() is None
    other.make_read_only(offset)


def check_ring():
    memory = memoryview(mmap.mmap(-1, RING_BYTES))
    words = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    reader, writer = RingReader(memory, words, 0), RingWriter(memory, words, 0, os.open(os.devnull, os.O_WRONLY))
    for number in range(3000):
        message = bytes([number % 251]) * (number % 300)
        assert writer.put(message)
        assert reader.take(1, lambda data, flags: bytes(data)) == [message]


def check_bytes():
    elements = [b"x" * (number % 300) for number in range(1000)]
    array = np.array(elements, dtype=object)
    blob = pb_utils.serialize_byte_tensor(array)
    assert pb_utils.deserialize_bytes_tensor(blob).tolist() == elements
    tensor = Tensor._received("IN", 13, (10, 100), None, memoryview(bytearray(blob)))
    assert tensor.as_numpy().reshape(-1).tolist() == elements


def check_dlpack():
    tensor = pb_utils.Tensor("a", np.arange(3))
    if not HAS_DLPACK:
        assert "DLPack needs numpy" in str(raised(tensor.to_dlpack))
        return
    before = sys.getrefcount(tensor)
    back = pb_utils.Tensor.from_dlpack("b", tensor.to_dlpack())
    assert sys.getrefcount(tensor) == before + 1
    assert back.as_numpy().tolist() == [0, 1, 2]
    del back
    assert sys.getrefcount(tensor) == before
    # BF16 and bool, of which numpy knows nothing or not in every version
    received = Tensor._received("c", 14, (1,), b"\x80\x3f", None)
    assert bytes(memoryview(pb_utils.Tensor.from_dlpack("d", received)._payload()[2])) == b"\x80\x3f"
    truth = pb_utils.Tensor.from_dlpack("e", pb_utils.Tensor("f", np.array([True, False])))
    assert truth.as_numpy().tolist() == [True, False]

    def model():
        capsule = tensor.to_dlpack()
        raise ValueError(type(capsule).__name__)

    assert repr(raised(model)) == "ValueError('PyCapsule')"
    gc.collect()
    assert sys.getrefcount(tensor) == before
    assert weakref.ref(tensor)() is tensor


def check_exception():
    entry = types.ModuleType(model.__name__)
    exec("def call(function):\n    function()\n", entry.__dict__)
    names = {"__name__": "1.model"}
    exec(compile("def f(): raise KeyError('k')\ndef boom(): f()\n", "model.py", "exec"), names)
    error = raised(lambda: entry.call(names["boom"]))
    text = format_exception(error)
    assert text == "KeyError: 'k'\n\nAt:\n  model.py(1): f\n  model.py(2): boom\n", text


def check_logger():
    lines = []
    logger.connect(lambda *line: lines.append(line))
    pb_utils.Logger.log_warn("x")
    assert [line[0] for line in lines] == [1]
    assert lines[0][1].endswith("check_interpreter.py")


def check_import_of_every_module():
    """In place of msgpack is something that can be imported: what a stub is lent is not there for this script."""
    lent = types.ModuleType("msgpack")
    lent.Packer = lambda **_: types.SimpleNamespace(pack=None)
    sys.modules["msgpack"] = lent
    found = [name for _, name, _ in pkgutil.walk_packages(stubserve_stub.__path__, "stubserve_stub.")]
    assert len(found) > 40, found
    for name in found:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    sys.modules["msgpack"] = None


if __name__ == "__main__":
    for name, check in sorted(globals().items()):
        if name.startswith("check_"):
            check()
            print(name)
