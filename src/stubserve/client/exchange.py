"""What a client says to a server, as steps: which method of a tritonclient to call next, and with what.

A generator yields a step and is sent what the method returned, or has thrown into it what the method raised. So this
module is written once for HTTP and gRPC, threads and asyncio; `clients.py` makes the calls.

A request whose region the server does not know has not been executed, so it is asked again, with blocks that are
registered anew. Nothing else is asked twice.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Generator, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from tritonclient.utils import InferenceServerException

from stubserve.client import owner, tensors
from stubserve.client.pool import BlockLoan, BlockPool, loan_of

log = logging.getLogger("stubserve.client")

T = TypeVar("T")
# A method of a tritonclient, and its arguments
Step = tuple[str, dict[str, Any]]
Steps = Generator[Step, Any, T]

# Smaller tensors are sent: naming them saves nothing.
SMALLEST = 64 << 10
_ATTEMPTS = 3
# What says nothing about what the server does with a request
_NO_ANSWER = (
    None,
    "StatusCode.DEADLINE_EXCEEDED",
    "StatusCode.CANCELLED",
    "StatusCode.UNAVAILABLE",
    "StatusCode.UNKNOWN",
)
# What may be otherwise the next time
_PASSING = (*_NO_ANSWER, "StatusCode.RESOURCE_EXHAUSTED", "429", "502", "503", "504")


class Exchange:
    """One server, as one client sees it. `module` has tritonclient's classes of a request; `limit` is in bytes."""

    def __init__(self, module: ModuleType, limit: int) -> None:
        self.pool = BlockPool(limit)
        # Why tensors go over the wire; None if they do not
        self.by_wire: str | None = None
        self._module = module
        self._json = {"as_json": True} if module.__name__.endswith("grpc") else {}
        self._pid = os.getpid()
        self._swept = False
        # (model, version) -> what is known of its inputs and outputs; None if the server does not show it
        self._tensors: dict[tuple[str, str], tensors.ModelTensors | None] = {}

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        outputs: Iterable[str] | tensors.Shapes | None,
        version: str,
        options: dict[str, Any],
    ) -> Steps[dict[str, np.ndarray]]:
        self._check_process()
        known = yield from self._tensors_of(model, version)
        as_input = known.as_input if known is not None else lambda _, given: np.asarray(given)
        arrays = {name: as_input(name, given) for name, given in inputs.items()}
        sizes = tensors.sizes(outputs, known if self.by_wire is None else None, arrays.values())
        request = {"model_name": model, "model_version": version, **options}
        for attempt in range(_ATTEMPTS + 1):
            loans: list[BlockLoan] = []
            try:
                return (yield from self._attempt(request, arrays, sizes, loans, attempt < _ATTEMPTS))
            except InferenceServerException as error:
                if not loans or "Unable to find shared memory region" not in error.message():
                    # A reload may have changed the configuration.
                    self._tensors.pop((model, version), None)
                    raise
                self.pool.lost(min(loan.block.generation for loan in loans))
        raise AssertionError("the last attempt has no loans")

    def frame(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Steps[np.ndarray]:
        """An array in a block that the server knows, or in ordinary memory where there is none."""
        self._check_process()
        nbytes = 0 if tensors.has_no_size(dtype) else math.prod(shape) * dtype.itemsize
        loan = yield from self._lend(nbytes)
        return np.empty(shape, dtype) if loan is None else loan.array(shape, dtype)

    def close(self) -> Steps[None]:
        """Has the server forget all regions, if it can be reached. A fork does nothing: they are its parent's."""
        if os.getpid() != self._pid:
            return
        self.pool.close()
        while (name := self.pool.next_leaving()) is not None:
            try:
                yield "unregister_system_shared_memory", {"name": name}
            except InferenceServerException:
                pass
            except Exception as error:
                log.debug("the server cannot be told to forget regions: %s", error)
                return

    def _attempt(
        self,
        request: dict[str, Any],
        arrays: dict[str, np.ndarray],
        sizes: dict[str, int] | None,
        loans: list[BlockLoan],
        pooled: bool,
    ) -> Steps[dict[str, np.ndarray]]:
        """One request. `loans` gets those of its blocks, and keeps them until the answer is there."""
        yield from self._unregister_one()
        given = []
        for name, array in arrays.items():
            tensor = self._module.InferInput(name, list(array.shape), tensors.datatype_of(name, array))
            loan = (yield from self._holding(array)) if pooled else None
            if loan is None:
                tensor.set_data_from_numpy(array)
            else:
                loans.append(loan)
                tensor.set_shared_memory(loan.block.name, array.nbytes, loan.offset_of(array))
            given.append(tensor)
        wanted = []
        places = {}
        for name, nbytes in (sizes or {}).items():
            output = self._module.InferRequestedOutput(name)
            loan = (yield from self._lend(nbytes)) if pooled else None
            if loan is not None:
                loans.append(loan)
                places[name] = loan
                output.set_shared_memory(loan.block.name, loan.block.nbytes)
            wanted.append(output)
        try:
            result = yield "infer", {**request, "inputs": given, "outputs": wanted or None}
        except BaseException as error:
            if not isinstance(error, InferenceServerException) or error.status() in _NO_ANSWER:
                for loan in loans:
                    loan.block.spoiled = True
            raise
        return {
            name: places[name].array(shape, dtype) if name in places else result.as_numpy(name)
            for name, dtype, shape in tensors.answered(result)
        }

    def _holding(self, array: np.ndarray) -> Steps[BlockLoan | None]:
        """The loan in which an input lies: its own, or one that it is copied into. None if it is to be sent."""
        if tensors.has_no_size(array.dtype):
            return None
        loan = loan_of(array)
        if loan is not None and array.flags.c_contiguous and self.pool.usable(loan.block):
            return loan if self.by_wire is None else None
        loan = yield from self._lend(array.nbytes)
        if loan is not None:
            np.copyto(loan.array(array.shape, array.dtype), array)
        return loan

    def _lend(self, nbytes: int) -> Steps[BlockLoan | None]:
        """A block that the server knows; None where a tensor is to be sent."""
        if nbytes < SMALLEST or self.by_wire is not None:
            return None
        loan = self.pool.lend(nbytes)
        if loan is None or loan.block.known:
            return loan
        block = loan.block
        region = {"name": block.name, "key": f"/{block.name}", "byte_size": block.nbytes}
        try:
            yield "register_system_shared_memory", region
        except BaseException as error:
            self.pool.refused(block)
            if not isinstance(error, InferenceServerException):
                raise
            # gRPC has the status UNAVAILABLE for an API that is restricted, too.
            lasts = error.status() not in _PASSING or "restricted" in error.message()
            if lasts and self.by_wire is None:
                self.by_wire = error.message()
                log.warning("tensors go over the wire: the server refuses shared memory: %s", self.by_wire)
            return None
        self.pool.registered(block)
        if not self._swept:
            self._swept = True
            yield from self._sweep()
        return loan

    def _sweep(self) -> Steps[None]:
        """Has the server forget the regions of clients that were killed, and so give their memory back."""
        try:
            status = yield "get_system_shared_memory_status", self._json
        except InferenceServerException:
            return
        names = status.get("regions", {}) if isinstance(status, dict) else [row["name"] for row in status]
        for name in filter(owner.is_orphan, names):
            self.pool.leave(name)

    def _unregister_one(self) -> Steps[None]:
        """One a request, so that no request waits for many."""
        name = self.pool.next_leaving() if self.by_wire is None else None
        if name is None:
            return
        try:
            yield "unregister_system_shared_memory", {"name": name}
        except InferenceServerException as error:
            # "in use" is real Triton's answer while a request with the region is under way.
            if "in use" in error.message() or error.status() in _PASSING:
                self.pool.leave(name)
        except BaseException:
            self.pool.leave(name)
            raise

    def _tensors_of(self, model: str, version: str) -> Steps[tensors.ModelTensors | None]:
        """What the configuration says; None if the server does not show it."""
        key = (model, version)
        if key not in self._tensors:
            try:
                shown = yield "get_model_config", {"model_name": model, "model_version": version, **self._json}
            except InferenceServerException as error:
                if error.status() in _PASSING:
                    return None
                self._tensors[key] = None
            else:
                self._tensors[key] = tensors.ModelTensors.from_config(shown.get("config", shown))
        return self._tensors.get(key)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this client belongs to process {self._pid}, and process {os.getpid()} is a fork of it. Two processes "
                "would write into the same memory: make a client in each process"
            )
