"""The process that reads large JSON for the server: `python -m stubserve.http.json.worker FD`.

It reads one job after the other from a socket and answers each, until the socket ends; see `process`. Of a model it
knows only what the job says. It refuses a request with too much text beside its tensors before it sends any answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from stubserve.api.placement import SMALL_BYTES
from stubserve.closed_process import close_process
from stubserve.errors import Code, ServeError
from stubserve.http.generate_decode import decode_generate
from stubserve.http.infer_json import decode_json
from stubserve.http.json.job import (
    GENERATE,
    HEAD,
    IN_REGION,
    INFER,
    pack,
    pack_request,
    unpack,
    unpack_signature,
)
from stubserve.inference.tensor import Tensor
from stubserve.memory.heap_account import MAX_WORDS_BYTES, WORDS_TEXT
from stubserve.memory.regions import RegionPlace

_PR_SET_PDEATHSIG = 1


class Recorder:
    """Stands for a placer: records for each tensor where its bytes are, and keeps new bytes in `data`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data: list[bytes | memoryview] = []
        # The region, offset and size of each input in clients' shared memory, in order
        self.regions: list[tuple[str, int, int]] = []

    def slice(self, name: str, datatype: int, shape: Sequence[int], at: int, nbytes: int) -> Tensor:
        return Tensor(name, datatype, shape, None, None, at, nbytes)

    def put(self, name: str, datatype: int, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        if len(data) <= SMALL_BYTES:
            return Tensor(name, datatype, shape, bytes(data))
        self.data.append(data)
        return Tensor(name, datatype, shape, None, None, -1, len(data))

    def in_region(
        self, name: str, datatype: int, shape: Sequence[int], region: str, offset: int, nbytes: int
    ) -> Tensor:
        self.regions.append((region, offset, nbytes))
        return Tensor(name, datatype, shape, None, None, IN_REGION, 0)

    def output_in_region(self, region: str, offset: int, nbytes: int) -> RegionPlace:
        # Only the server knows which regions there are, and puts the real place in.
        return cast(RegionPlace, (region, offset, nbytes))

    def undo(self) -> None:
        pass


def read(job: tuple[Any, ...], text: bytes) -> tuple[Any, list[bytes | memoryview]]:
    """What a job's JSON says, ready to be packed, and the bytes of its large tensors. Raises ServeError."""
    kind, signature, size, max_input_size = job
    recorder = Recorder(size)
    if kind not in (INFER, GENERATE):
        module, _, name = kind.partition(":")
        make: Any = getattr(importlib.import_module(module), name)
        return pack_request(make(text, signature, max_input_size, recorder), None), recorder.data
    accepted = unpack_signature(signature)
    if kind == INFER:
        request, reply_format = decode_json(text, accepted, recorder, max_input_size)
        return pack_request(request, reply_format, recorder.regions), recorder.data
    return pack_request(decode_generate(text, accepted, recorder), None), recorder.data


def main(descriptor: int) -> None:
    # The socket ends with the server, and so does the worker. During a long job the signal ends it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # A large document takes ten times its size for a moment. If memory runs out, the kernel ends this process first.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    close_process()
    # The server may end at any time.
    with socket.socket(fileno=descriptor) as connection, contextlib.suppress(ConnectionError):
        while True:
            job_size, text_size = HEAD.unpack(receive(connection, HEAD.size))
            job = unpack(receive(connection, job_size))
            text = bytes(receive(connection, text_size))
            data: list[bytes | memoryview] = []
            answer: Any
            try:
                answer, data = read(job, text)
            except ServeError as error:
                answer = (error.code, (error.message, error.path))
            except MemoryError:
                answer = (Code.UNAVAILABLE, ("out of memory while the request's JSON was read",))
            else:
                answer = (None, answer)
            del text
            packed = pack(answer)
            if len(packed) > MAX_WORDS_BYTES:
                # The answer may also be a refusal that quotes the document.
                packed = pack((Code.INVALID_ARG, (WORDS_TEXT,)))
                data = []
            connection.sendall(HEAD.pack(len(packed), sum(map(len, data))) + packed)
            for piece in data:
                connection.sendall(piece)


def receive(connection: socket.socket, size: int) -> bytearray:
    """The next `size` bytes. Raises ConnectionError at the end."""
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionResetError("the server has ended")
        done += count
    return data


if __name__ == "__main__":
    main(int(sys.argv[1]))
