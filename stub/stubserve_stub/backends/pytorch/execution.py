"""Runs a program on memory that others own: inputs are read where they lie, results are in torch's memory.

A tensor is a view of its input's memory, so the inputs of a single request are not copied. A program that may write to
its inputs, or keep them, gets a copy where the memory is read-only: because it is small, or because others see it, too.
TorchScript and exported programs say whether they do; all others are assumed to. Results are copied once, when they are
sent, unless they are an input. On a GPU inputs are brought there (`backends.on_gpu`), into memory that is the
program's own if it may keep them or write to them. Results stay there, or are copied down.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, List, Mapping, Sequence

from stubserve_stub.api.bytes_tensor import object_array
from stubserve_stub.backends.gather import Gathered, staying
from stubserve_stub.backends.loading import added_outputs
from stubserve_stub.backends.native import InputView, NativeOutput
from stubserve_stub.backends.pytorch.options import TorchOptions
from stubserve_stub.backends.pytorch.program import Naming, Tensors, TorchProgram
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, BY_NUMBER, BYTES

CPU = "cpu"
_GPU = re.compile("cuda|nvidia", re.IGNORECASE)


class TorchExecution:
    """One program, with the configuration's names for its arguments and results. `torch` is the package.

    `blocks` is the memory of the GPU where inputs go. It is None for the CPU, and for a model that brings its inputs
    elsewhere itself.
    """

    def __init__(
        self,
        torch: Any,
        program: TorchProgram,
        naming: Naming,
        tensors: Tensors,
        config: Mapping[str, Any],
        options: TorchOptions,
        blocks: Any,
    ) -> None:
        self._torch_tensor = torch.Tensor
        self._mode = torch.inference_mode if options.inference_mode else torch.no_grad
        self._blocks = blocks
        # Gives what torch keeps back to the GPU, after each execution
        self._clean = torch.cuda.empty_cache if options.cleans_cache else None
        self._program = program
        self._inputs = naming.inputs
        self._outputs = naming.outputs
        self._tensors = tensors
        # The data type of each output, and the shape in which an output without dimensions is sent
        outputs = [*added_outputs(config), *config["output"]]
        self._types = {output["name"]: BY_CONFIG_NAME[output["data_type"]].number for output in outputs}
        self._scalars = {output["name"]: _ones(output["dims"]) for output in outputs}
        self._defaults: List[Any] = []
        if program.arguments is not None:
            self._defaults = [argument.default for argument in program.arguments]
        elif not program.takes_dict:
            self._defaults = [None] * len(naming.inputs)

    def run(self, batch: Gathered) -> Dict[str, NativeOutput]:
        """The wanted outputs. Raises Refusal with torch's error."""
        if not batch.outputs:
            return {}
        with self._mode():
            arguments = self._arguments(batch.inputs)
            if not self._program.explains:
                value = self._program.call(*arguments)
            else:
                try:
                    value = self._program.call(*arguments)
                except Exception as error:
                    raise Refusal(f"PyTorch execute failure: {explain(error, self._blocks is None)}") from None
            results = self._results(batch.outputs, value)
        if self._clean is not None:
            del value, arguments
            self._clean()
        return results

    def _arguments(self, inputs: Mapping[str, InputView]) -> Sequence[Any]:
        values = {name: self._value(view) for name, view in inputs.items()}
        if self._program.takes_dict:
            return (values,)
        arguments = list(self._defaults)
        for name, value in values.items():
            arguments[self._inputs[name]] = value
        return arguments

    def _value(self, view: InputView) -> Any:
        if view.datatype == BYTES:
            return view.memory.tolist()
        memory = view.memory
        if self._blocks is not None:
            placed = self._blocks.fresh(view.name, memory, may_share=not self._program.writes_inputs)
            return self._tensors.on_gpu(placed, view.datatype, view.shape)
        if self._program.writes_inputs and not memory.flags.writeable:
            memory = memory.copy()
        return self._tensors.from_memory(memory, view.datatype, view.shape)

    def _results(self, names: Collection[str], value: Any) -> Dict[str, NativeOutput]:
        """The outputs with these names. A dict says of each whether a request wants it to stay on the GPU."""
        stay = staying(names)
        if isinstance(value, dict):
            return {name: self._output(name, _by_key(name, value), name in stay) for name in names}
        # A list of strings is one result, a list of anything else is several.
        if isinstance(value, self._torch_tensor) or (isinstance(value, list) and value and isinstance(value[0], str)):
            value = (value,)
        elif not isinstance(value, (tuple, list)):
            raise Refusal(
                "PyTorch execute failure: output must be of type Tensor, List[str], or a Tuple, List or Dict of these, "
                f"received {type(value).__name__}"
            )
        outputs = {}
        for name in names:
            position = self._outputs[name]
            if position >= len(value):
                raise Refusal(
                    f"The output {name} in the model configuration refers to an output index which doesn't exist. This "
                    f"model has {len(value)} outputs",
                    codes.INVALID_ARG,
                )
            outputs[name] = self._output(name, value[position], name in stay)
        return outputs

    def _output(self, name: str, value: Any, stays: bool) -> NativeOutput:
        expected = self._types[name]
        if isinstance(value, self._torch_tensor):
            number = self._tensors.number_of(value.dtype)
            if number != expected:
                raise self._mistyped(name, str(value.dtype) if number is None else BY_NUMBER[number].config_name)
            shape = tuple(value.shape) or self._scalars[name]
            memory = self._there(value) if stays else None
            return NativeOutput(name, expected, shape, self._tensors.memory_of(value) if memory is None else memory)
        if isinstance(value, list) and all(isinstance(element, str) for element in value):
            if expected != BYTES:
                raise self._mistyped(name, BY_NUMBER[BYTES].config_name)
            return NativeOutput(name, BYTES, (len(value),), object_array([element.encode() for element in value]))
        raise Refusal(
            f"PyTorch execute failure: output '{name}' must be of type Tensor or List[str], received "
            f"{type(value).__name__}"
        )

    def _there(self, value: Any) -> Any:
        """The memory of a result where it is, None if that is not the GPU of the instance."""
        if self._blocks is None or not value.is_cuda or value.device.index != self._blocks.gpu.number:
            return None
        value = self._tensors.plain(value)
        return self._blocks.wrap_output(value.data_ptr(), value.numel() * value.element_size(), value)

    def _mistyped(self, name: str, provided: str) -> Refusal:
        return Refusal(
            f"configuration expects datatype {BY_NUMBER[self._types[name]].config_name} for output '{name}', model "
            f"provides {provided}",
            codes.INVALID_ARG,
        )


def explain(error: BaseException, elsewhere: bool) -> str:
    """torch's text of an error; not on a GPU (`elsewhere`), with advice if it comes from a model made for one."""
    text = str(error).strip() or type(error).__name__
    if not elsewhere or not _GPU.search(text):
        return text
    return (
        text + "\nThe model asks for a GPU itself, and this instance runs on a CPU: a device stays in the code of a "
        "model that has been traced on it, or that names it. Move the model and its example inputs to the CPU, trace, "
        "script or export it there, and save it again."
    )


def _by_key(name: str, value: Mapping[str, Any]) -> Any:
    if name not in value:
        raise Refusal(
            f"The output {name} in the model configuration is no key of the dictionary that the model returns, which "
            f"has {', '.join(map(str, value))}",
            codes.INVALID_ARG,
        )
    return value[name]


def _ones(dims: Sequence[Any]) -> Sequence[int]:
    """The shape of a single element, with as many dimensions as in the configuration; none where it cannot be one."""
    return tuple(1 for _ in dims) if all(int(dim) in (1, -1) for dim in dims) else ()
