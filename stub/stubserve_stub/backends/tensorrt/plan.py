"""From a plan of TensorRT to an engine and its contract, or to a sentence that says why not.

A plan runs with the TensorRT and on the kind of GPU that it was built for. TensorRT says what does not fit in its log,
so the log of a load becomes the reason. Names are those of TensorRT 10 and later: its engines know tensors by name.

A profile is a range of shapes that an engine was built for: the least, the best and the largest shape of each input.
An instance uses the profiles of its group (`profile`), or the first one. A request runs in the one with the
nearest best shapes, as in upstream.
"""

from __future__ import annotations

import os
from typing import Any, Callable, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from stubserve_stub.backends.contract import Contract
from stubserve_stub.backends.loading import HEAD_BYTES, TensorInfo, resemblance
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_NAME, shape_text

DEFAULT_FILE = "model.plan"

# TensorRT's names of data types, as far as they travel
_TYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}
# What its log says of a plan that was built for another TensorRT or another GPU
_MISMATCHES = ("version", "device", "compute capability", "magic", "serializ")
_ADVICE = (
    ". A plan runs only with the TensorRT, and on the kind of GPU, that it was built for: build it here from its ONNX "
    "file (trtexec --onnx=model.onnx --saveEngine=model.plan), or serve that file"
)

Shape = Tuple[int, ...]


class Profile(NamedTuple):
    """The least, best and largest shape of each input; of a shape tensor, its values instead."""

    number: int
    ranges: Mapping[str, Tuple[Shape, Shape, Shape]]


class Plan(NamedTuple):
    """An engine, its tensors and profiles, by the number of the profile. `on_host` are the tensors that lie there."""

    engine: Any
    contract: Contract
    profiles: Mapping[int, Profile]
    on_host: FrozenSet[str]


class Log:
    """What TensorRT says: errors are kept until they are `taken`, warnings go to `warn`."""

    def __init__(self, tensorrt: Any, warn: Callable[[str], None]) -> None:
        errors: List[str] = []
        severities = tensorrt.ILogger.Severity
        serious = (severities.INTERNAL_ERROR, severities.ERROR)

        class Logger(tensorrt.ILogger):  # type: ignore[misc]  # a class of a package that may be missing
            def __init__(self) -> None:
                tensorrt.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:
                if severity in serious:
                    errors.append(text)
                elif severity == severities.WARNING:
                    warn(text)

        self.logger = Logger()
        self._errors = errors

    def taken(self) -> str:
        """The errors since the last call, as one text."""
        text = "; ".join(self._errors)
        self._errors.clear()
        return text or "no reason given"


def find_file(version_dir: str, filename: str) -> str:
    return os.path.join(version_dir, filename or DEFAULT_FILE)


def open_plan(
    tensorrt: Any, log: Log, path: str, instance: str, plugins: Sequence[str], dla_core: Optional[int], trusted: bool
) -> Plan:
    """With the GPU of the instance being the current one. Raises Refusal.

    `plugins` are libraries with layers. `trusted` plans may bring code for the host, as those of other versions do.
    """
    data = _read(path, instance)
    tensorrt.init_libnvinfer_plugins(log.logger, "")
    runtime = tensorrt.Runtime(log.logger)
    for library in plugins:
        try:
            runtime.get_plugin_registry().load_library(library)
        except Exception as error:
            raise Refusal(f"the plugin library '{library}' of --backend-config=tensorrt,plugins: {error}") from None
    runtime.engine_host_code_allowed = trusted
    if dla_core is not None:
        runtime.DLA_core = dla_core
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        reason = log.taken()
        advice = _ADVICE if any(word in reason.lower() for word in _MISMATCHES) else ""
        raise Refusal(
            f"unable to load '{path}' for model instance '{instance}': TensorRT {tensorrt.__version__}: {reason}"
            f"{resemblance(data[:HEAD_BYTES])}{advice}"
        )
    return _described(tensorrt, engine)


def _read(path: str, instance: str) -> bytes:
    if not os.path.isfile(path):
        raise Refusal(f"unable to find '{path}' for model instance '{instance}'")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refusal(f"'{path}' cannot be read: {error.strerror}") from None


def _described(tensorrt: Any, engine: Any) -> Plan:
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    inputs = {name for name in names if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT}
    on_host = frozenset(name for name in names if engine.get_tensor_location(name) == tensorrt.TensorLocation.HOST)
    shape_tensors = frozenset(name for name in names if engine.is_shape_inference_io(name))
    infos = {name: _info(tensorrt, engine, name, "input" if name in inputs else "output") for name in names}
    profiles = {}
    for number in range(engine.num_optimization_profiles):
        ranges = {}
        for name in inputs:
            if name in shape_tensors and name in on_host:
                given = engine.get_tensor_profile_values(number, name)
            else:
                given = engine.get_tensor_profile_shape(name, number)
            least, best, largest = (tuple(int(dim) for dim in one) for one in given)
            ranges[name] = (least, best, largest)
        profiles[number] = Profile(number, ranges)
    contract = Contract(
        {name: info for name, info in infos.items() if name in inputs},
        {name: info for name, info in infos.items() if name not in inputs},
        shape_tensors=shape_tensors & on_host,
    )
    return Plan(engine, contract, profiles, on_host)


def _info(tensorrt: Any, engine: Any, name: str, what: str) -> TensorInfo:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _TYPES:
        raise Refusal(
            f"{what} '{name}' has the data type {kind} of TensorRT, which has no counterpart among those of the server"
        )
    if engine.get_tensor_format(name) != tensorrt.TensorFormat.LINEAR:
        raise Refusal(
            f"{what} '{name}' has the format {engine.get_tensor_format(name).name}, and only LINEAR can be sent: build "
            "the plan with --inputIOFormats and --outputIOFormats of chw"
        )
    dims = [int(dim) for dim in engine.get_tensor_shape(name)]
    return TensorInfo(name, BY_NAME[_TYPES[kind]].number, dims)


def used_profiles(plan: Plan, asked: Sequence[str], instance: str) -> List[Profile]:
    """The profiles of an instance, which asks for them by number. Raises Refusal."""
    numbers = [int(text) for text in asked] or [0]
    for number in numbers:
        if number not in plan.profiles:
            raise Refusal(
                f"unable to load model instance '{instance}': its group asks for profile {number}, and the plan has "
                f"{len(plan.profiles)} (0 to {len(plan.profiles) - 1})"
            )
    return [plan.profiles[number] for number in numbers]


def with_batch_of(plan: Plan, profiles: Sequence[Profile]) -> Contract:
    """The plan's contract with the largest batch of these profiles, 0 where the first dimensions are fixed."""
    contract = plan.contract
    varying = [name for name, info in contract.inputs.items() if list(info.dims[:1]) == [-1]]
    most = [min((one.ranges[name][2][0] for name in varying), default=0) for one in profiles]
    return contract._replace(most_rows=max(most, default=0))


def check_batch(config: Mapping[str, Any], contract: Contract) -> None:
    """Raises Refusal for a batch that no profile allows, and for shape tensors in batches."""
    asked = int(config.get("max_batch_size", 0))
    if asked and contract.shape_tensors:
        raise Refusal(
            f"unable to load model '{config['name']}': it has the shape tensor '{min(contract.shape_tensors)}', and a "
            "model with shape tensors is not batched here: `max_batch_size: 0`"
        )
    if asked and contract.most_rows and asked > contract.most_rows:
        raise Refusal(
            f"unable to load model '{config['name']}': configuration specified max-batch {asked} but TensorRT engine "
            f"only supports max-batch {contract.most_rows}"
        )


def nearest(profiles: Sequence[Profile], shapes: Mapping[str, Shape], instance: str) -> Profile:
    """The profile for these shapes (and values of shape tensors). Raises Refusal if none allows them."""
    found: Optional[Profile] = None
    least = 0
    problem = ""
    for profile in profiles:
        problem = _problem(profile, shapes, instance)
        if problem:
            continue
        far = sum(
            abs(best - given) for name, shape in shapes.items() for best, given in zip(profile.ranges[name][1], shape)
        )
        if found is None or far < least:
            found, least = profile, far
    if found is None:
        raise Refusal(problem, codes.INVALID_ARG)
    return found


def _problem(profile: Profile, shapes: Mapping[str, Shape], instance: str) -> str:
    """Why a profile does not allow these shapes, in upstream's words; empty if it does."""
    for name, shape in shapes.items():
        least, _, largest = profile.ranges[name]
        where = f"request specifies an invalid shape for input '{name}' for {instance}. Error details: "
        if len(shape) != len(largest):
            return f"{where}model expected {len(largest)} dimensions {shape_text(largest)} but received {len(shape)}"
        for number, (low, given, high) in enumerate(zip(least, shape, largest)):
            if not low <= given <= high:
                return (
                    f"{where}model expected the shape of dimension {number} to be between {low} and {high} but "
                    f"received {given}"
                )
    return ""
