"""The samples of `model_warmup`: from a configuration and files to the inputs of requests.

Rules and texts are upstream's. A sample is `batch_size` requests, each with one item, that are executed together,
`count` times (0 counts as 1, a batch size of 0 skips the sample). The model's own inputs are checked as in a client's
request. Others go to the model unchecked, for that is how a sample sets the controls and states of a sequence; an
ensemble takes none. Random bytes would be no valid strings, so BYTES are empty strings, as zeros are; and a BOOL is 0
or 1.
"""

# Compiled by mypyc.
from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from stubserve_stub.wire.datatypes import BOOL, BY_NUMBER, BYTES

from stubserve.errors import ServeError, internal, invalid
from stubserve.inference.admission import admit
from stubserve.inference.request import Request, refusal
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor

log = logging.getLogger("stubserve.model")

_FOLDER = "warmup"
# The bytes of an element of a type without a size: an empty string, which is its length
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class SampleInput:
    """An input of each request of a sample: `nbytes` in `shape`, as the model sees it.

    `given` are the bytes; None stands for zeros, or for random bytes.
    """

    name: str
    datatype: int
    shape: tuple[int, ...]
    nbytes: int
    given: bytes | None
    random: bool

    def fill(self, memory: memoryview) -> None:
        """Writes the input's bytes; random bytes differ each time."""
        if self.given is not None:
            memory[:] = self.given
        elif self.random:
            bytes_ = np.frombuffer(memory, np.uint8)
            bytes_[:] = np.frombuffer(os.urandom(self.nbytes), np.uint8)
            if self.datatype == BOOL:
                bytes_ &= 1
        else:
            np.frombuffer(memory, np.uint8).fill(0)


@dataclass(frozen=True)
class Sample:
    """A batch of `requests` that all have these inputs, executed `count` times.

    `added` are inputs that the model lacks.
    """

    name: str
    requests: int
    count: int
    inputs: Sequence[SampleInput]
    added: Sequence[SampleInput]

    def is_too_large(self, max_batch_size: int) -> bool:
        return self.requests > max(max_batch_size, 1)

    def too_large(self, name: str, max_batch_size: int) -> ServeError:
        """The text of upstream's backends for that, about a model or an instance."""
        return internal(f"batch size {self.requests} for '{name}', max allowed is {max_batch_size}")


def read_samples(config: Any, signature: Signature, model_dir: Path) -> list[Sample]:
    """All samples of a configuration. Raises ServeError, the first of `sample_problems`."""
    samples = []
    for setting in config.model_warmup:
        if setting.batch_size:
            log.debug("Generating warmup sample data for '%s'", setting.name)
            samples.append(_read(setting, signature, model_dir, config.HasField("ensemble_scheduling")))
        else:
            log.debug("Skipping batch 0 warmup sample '%s'", setting.name)
    return samples


def sample_problems(config: Any, signature: Signature, model_dir: Path) -> Iterator[ServeError]:
    """The faults of the samples, at most one for each sample."""
    for index, setting in enumerate(config.model_warmup):
        try:
            if setting.batch_size:
                sample = _read(setting, signature, model_dir, config.HasField("ensemble_scheduling"))
                if sample.is_too_large(signature.max_batch_size):
                    raise sample.too_large(signature.model, signature.max_batch_size)
        except ServeError as error:
            yield error.at("model_warmup", index)


def _read(setting: Any, signature: Signature, model_dir: Path, is_ensemble: bool) -> Sample:
    named = sorted(setting.inputs.items())
    for name, given in named:
        if any(dim < 0 for dim in given.dims):
            raise invalid(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
    inputs: list[SampleInput] = []
    added: list[SampleInput] = []
    for name, given in named:
        one = _input(name, given, signature, model_dir)
        (inputs if name in signature.inputs else added).append(one)
    if added and is_ensemble:
        raise invalid(f"unexpected inference input '{added[0].name}' for model '{signature.model}'")
    request = Request([_unplaced(one) for one in inputs])
    admit(request, signature)
    # Now in the shapes that the model sees.
    shaped = [replace(one, shape=tuple(tensor.shape)) for one, tensor in zip(inputs, request.inputs, strict=True)]
    return Sample(setting.name, setting.batch_size, max(setting.count, 1), shaped, added)


def _input(name: str, setting: Any, signature: Signature, model_dir: Path) -> SampleInput:
    # As upstream counts: a shape without dimensions has no elements.
    elements = prod(setting.dims) if setting.dims else 0
    kind = BY_NUMBER.get(setting.data_type)
    nbytes = elements * ((kind.itemsize if kind is not None else 0) or _LENGTH_BYTES)
    source = setting.WhichOneof("input_data_type")
    given = None
    if source == "input_data_file":
        given = _file(f"{model_dir}/{_FOLDER}/{setting.input_data_file}")
        if setting.data_type == BYTES:
            nbytes = len(given)
        elif len(given) < nbytes:
            raise refusal(
                "",
                f"warmup setting expects {nbytes} bytes, but the data provided from {setting.input_data_file}only has "
                f"{len(given)} bytes",
            )
        given = given[:nbytes]
    elif source is None:
        raise refusal("", f"warmup setting expects input '{name}' to have input_data_type set")
    batches = signature.max_batch_size > 0
    shape = (1, *setting.dims) if batches else tuple(setting.dims)
    random = source == "random_data" and setting.data_type != BYTES
    return SampleInput(name, setting.data_type, shape, nbytes, given, random)


def _file(path: str) -> bytes:
    # As text, since upstream's message contains the path even if the file's name is empty.
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from None


def _unplaced(one: SampleInput) -> Tensor:
    """For the checks alone, which look only at the bytes of strings."""
    data = one.given
    if data is None and one.datatype == BYTES:
        data = bytes(one.nbytes)
    return Tensor(one.name, one.datatype, one.shape, data, nbytes=one.nbytes)
