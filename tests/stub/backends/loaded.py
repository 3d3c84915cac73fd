"""A native backend in this process: an instance of a model in a folder, loaded as a stub does it, and its requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.cards import card_of
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.process import load
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BY_NAME, BYTES
from stubserve_stub.wire.options import NO_OPTIONS

from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import adopt_completed, render_json
from tests.stub.runtime.stub_memory import StubMemory


class Log:
    """The control socket of a host: keeps the lines, those below a warning by level, and who hears the server."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said: list[tuple[int, str]] = []
        self.handlers: dict[str, Any] = {}

    def handle(self, kind: str, handler: Any) -> None:
        self.handlers[kind] = handler

    def send(self, kind: str, **message: Any) -> None:
        assert kind == "log"
        if message["level"] == codes.LOG_WARNING:
            self.lines.append(message["message"])
        else:
            self.said.append((message["level"], message["message"]))


class Instance:
    """One instance of a model in `folder`."""

    def __init__(
        self,
        folder: Path,
        config: str = "",
        stub: StubMemory | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        given = normalise(parse_text(config, "config.pbtxt"), "m", folder)
        self.log = Log()
        self.stub: Any = stub
        channel: Any = None if stub is None else stub.channel
        self.backend = load(card_of(given.backend).program)()
        self.host = Host("m_0", self.log, settings)  # type: ignore[arg-type]
        self.host.channel = channel
        self.backend.initialize(self.host)
        self.backend.model_initialize(ModelFiles(str(folder / "1"), "", "", []))
        self.completed = given
        if self.backend.completes_config:
            self.completed = adopt_completed(given, self.backend.complete_config("m", render_json(given)))

    def start(self, kind: str = "CPU", device: int = 0) -> Instance:
        arguments = {"model_config": render_json(self.completed), "model_instance_kind": kind}
        arguments.update(model_repository=str(self.folder), model_instance_device_id=str(device))
        outputs = [output.name for output in self.completed.output]
        self.backend.instance_initialize(InstanceSetup("m_0", arguments, outputs, False))
        return self

    def run(self, *requests: Any, sequences: Sequence[int] = ()) -> Any:
        """Entries of the result, prepared."""
        batch = Batch(self.stub.channel, 1, requests, sequences)
        entries = self.backend.execute(batch)
        return batch.prepare_result(entries)[1]

    def infer(self, outputs: Sequence[str] | None = None, **inputs: Any) -> dict[str, Any]:
        """Arrays in, arrays out; lists of bytes are BYTES."""
        ((error, tensors, _),) = self.run(request(outputs, **inputs))
        assert error is None, error
        return {name: self.array(tensor) for tensor in tensors for name in tensor[:1]}

    def array(self, tensor: Any) -> Any:
        _, datatype, shape, place = tensor
        data = place if isinstance(place, bytes) else self.stub.read(place)
        if datatype == BYTES:
            return elements(data)
        kind = np.uint16 if BY_NAME["BF16"].number == datatype else numpy_type(datatype)
        return np.frombuffer(data, kind).reshape(shape)


def numpy_type(number: int) -> Any:
    return next(kind.numpy for kind in BY_NAME.values() if kind.number == number)


def elements(data: bytes) -> list[bytes]:
    found = []
    while data:
        length = int.from_bytes(data[:4], "little")
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def wire(name: str, value: Any, datatype: str = "", place: Any = None) -> Any:
    if isinstance(value, list):
        return (name, BYTES, (len(value),), strings.join(value))
    number = BY_NAME[datatype].number if datatype else numbers[value.dtype]
    return (name, number, value.shape, value.tobytes() if place is None else tuple(place))


numbers = {kind.numpy: kind.number for kind in BY_NAME.values()}


def request(outputs: Sequence[str] | None = None, **inputs: Any) -> Any:
    tensors = [value if isinstance(value, tuple) else wire(name, value) for name, value in inputs.items()]
    return ("id", NO_OPTIONS, None, outputs, tensors)
