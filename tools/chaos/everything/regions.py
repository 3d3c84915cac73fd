"""Clients that share memory with the server, and cut it off, take it away and register it anew under its hands."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from ..grpc_clients import GrpcClient
from ..http_clients import HttpClient, read, reason
from ..world import Client, Refused, World, Wrong

PREFIX = "stubserve-chaos-"
LARGEST = 300_000
PAGE = 4096
# Model, and what it answers: factor times x, and more
MODELS = [("works", 2.0, 1.0), ("calls", -2.0, -1.0), ("mixed", -6.0, -3.0), ("limited", 1.0, 1.0)]


class Region:
    """A file in /dev/shm; its name is only needed until it is registered."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.key = f"/{PREFIX}{uuid.uuid4().hex}"
        self.descriptor = os.open(f"/dev/shm{self.key}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.descriptor, nbytes)

    def lose_name(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm{self.key}")

    def close(self) -> None:
        self.lose_name()
        os.close(self.descriptor)


class RegionClient(Client):
    """`given` and `wanted` are where inputs and outputs of its requests are. It registers both anew after a failure.

    A request may lose its memory under way. Then it is refused, or it was quick enough, and its answer right.
    """

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.given: Region | None = None
        self.wanted: Region | None = None

    def hang_up(self) -> None:
        super().hang_up()
        for region in (self.given, self.wanted):
            if region is not None:
                region.close()
        self.given = self.wanted = None

    def ask(self) -> None:
        if self.given is None or self.wanted is None:
            self._share()
        given, wanted = self.given, self.wanted
        assert given is not None
        assert wanted is not None
        model, factor, more = self.random.choice(MODELS)
        x = np.full(self.random.choice([1, 16, 500, 5000, LARGEST]), self.random.randrange(1 << 20), np.float32)
        offset = self.random.choice([0, 4, PAGE]) if x.size < LARGEST else 0
        os.pwrite(given.descriptor, x.tobytes(), offset)
        os.pwrite(wanted.descriptor, bytes(x.nbytes), 0)
        trouble = self.random.choice([None] * 12 + [self._cut_input, self._cut_output, self._forget, self._twice])
        self.infer(model, x.size, offset, trouble)
        y = np.frombuffer(os.pread(wanted.descriptor, x.nbytes, 0), np.float32)
        # Of an output that has been cut off there may be nothing left to see.
        if trouble != self._cut_output and not np.array_equal(y, factor * x + more):
            named = trouble.__name__ if trouble else "no trouble"
            raise Wrong(f"{model}({x[0]:.0f} x {x.size}) = {y[:3]} ... {y[-3:]} in shared memory, {named}")
        if trouble is not None:
            self.hang_up()

    def infer(self, model: str, size: int, offset: int, trouble: Any) -> None:
        """One request, with trouble while it is under way. Raises Refused."""
        raise NotImplementedError

    def _share(self) -> None:
        self.given, self.wanted = Region(4 * LARGEST + PAGE), Region(4 * LARGEST)
        for way, region in (("in", self.given), ("out", self.wanted)):
            name = self.region(way)
            self._manage(f"/v2/systemsharedmemory/region/{name}/unregister", {})
            body = {"key": region.key, "byte_size": region.nbytes, "offset": 0}
            self._manage(f"/v2/systemsharedmemory/region/{name}/register", body)
            region.lose_name()

    def region(self, way: str) -> str:
        return f"{self.name} {way}".replace(" ", "-")

    def _manage(self, path: str, body: dict[str, Any]) -> None:
        status, text = self.world.post(path, json.dumps(body), self.world.headers)
        if status != 200:
            raise Refused(f"{status} {reason(text)}")

    def _cut_input(self) -> None:
        assert self.given is not None
        os.ftruncate(self.given.descriptor, self.random.choice([0, PAGE, 2 * LARGEST]))

    def _cut_output(self) -> None:
        assert self.wanted is not None
        os.ftruncate(self.wanted.descriptor, self.random.choice([0, PAGE, 2 * LARGEST]))

    def _forget(self) -> None:
        for way in ("in", "out"):
            self._manage(f"/v2/systemsharedmemory/region/{self.region(way)}/unregister", {})

    def _twice(self) -> None:
        """A name that is taken is refused, and stays what it is."""
        other = Region(PAGE)
        try:
            body = {"key": other.key, "byte_size": PAGE}
            self._manage(f"/v2/systemsharedmemory/region/{self.region('in')}/register", body)
        except Refused as error:
            if "already" not in str(error):
                raise
        else:
            raise Wrong("a name that was taken could be registered again")
        finally:
            other.close()


class Regions(RegionClient, HttpClient):
    """Over HTTP."""

    def infer(self, model: str, size: int, offset: int, trouble: Any) -> None:
        given = {"name": "X", "datatype": "FP32", "shape": [1, size], "parameters": self._piece("in", size, offset)}
        wanted = {"name": "Y", "parameters": self._piece("out", size, 0)}
        body = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
        response = self.post(f"/v2/models/{model}/infer", body, under_way=trouble)
        read(response)

    def _piece(self, way: str, size: int, offset: int) -> dict[str, Any]:
        return {
            "shared_memory_region": self.region(way),
            "shared_memory_byte_size": 4 * size,
            "shared_memory_offset": offset,
        }


class UnaryRegions(RegionClient, GrpcClient):
    """Over gRPC."""

    ask = GrpcClient.ask
    call = RegionClient.ask

    def infer(self, model: str, size: int, offset: int, trouble: Any) -> None:
        request = service_pb2.ModelInferRequest(model_name=model)
        given = request.inputs.add(name="X", datatype="FP32", shape=[1, size])
        for item, way, at in ((given, "in", offset), (request.outputs.add(name="Y"), "out", 0)):
            item.parameters["shared_memory_region"].string_param = self.region(way)
            item.parameters["shared_memory_byte_size"].int64_param = 4 * size
            item.parameters["shared_memory_offset"].int64_param = at
        answer = self.stub.ModelInfer.future(request, **self.options)
        if trouble is not None:
            trouble()
        answer.result()
