"""Loads what torch saves: TorchScript, programs of torch.export and what AOTInductor makes of them, modules in Python.

Programs of torch.export, compiled or not, take and return what the model's `forward` does: tensors in tuples, lists and
dictionaries. As in Triton, the place of a tensor is its name: `ARGS[0]`, `ARGS[2][key]`, `KWARGS[k]`; `RESULT`,
`RESULT[0]`, `RESULT[k][0]`. Tensors are in the order of these structures.

A module in Python is the class in `model.py`, with its weights beside it under the same name. It works as Triton's
runtime "model.py", with the exceptions in docs/guides/backends.md.

No pickle in such a file runs code. TorchScript has a reader of its own, and torch reads weights with `weights_only`.
But where that refuses, `torch.export.load` falls back to the pickle module, in several places that differ between
versions. A pickle can only use what it names, and the interpreter announces each name before it is looked up (the audit
event `pickle.find_class`). So while such a file is loaded, only the names that tensors are made with are allowed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from stubserve_stub.backends.loading import TensorInfo, import_package
from stubserve_stub.backends.pytorch.options import TorchOptions
from stubserve_stub.backends.pytorch.program import Argument, Tensors, TorchProgram
from stubserve_stub.runtime.failure import Refusal

_STRINGS = "List[str]"
_TYPES = ("Tensor", "Optional[Tensor]", _STRINGS)


def load_torchscript(torch: Any, path: str, device: Optional[str]) -> TorchProgram:
    """`device` is where the weights go, None for where they were saved. Raises Refusal, and what torch raises."""
    module = torch.jit.load(path, map_location=device)
    method = getattr(module, "forward", None)
    if method is None:
        raise Refusal(f"'{path}' has no method 'forward'")
    declared = method.schema.arguments[1:]  # behind the module itself
    takes_dict = any(argument.type.kind() == "DictType" for argument in declared)
    if takes_dict and len(declared) > 1:
        raise Refusal(
            f"'{path}' takes a dictionary beside other arguments "
            f"({', '.join(argument.name for argument in declared)}). Only a single input of type Dict(str, Tensor) is "
            "supported"
        )
    return TorchProgram(
        method,
        None if takes_dict else [_argument(path, argument) for argument in declared],
        takes_dict=takes_dict,
        writes_inputs=_writes(method),
    )


def _argument(path: str, declared: Any) -> Argument:
    kind = str(declared.type)
    if kind not in _TYPES:
        raise Refusal(
            f"An input of type '{kind}' was detected in the model. Only a single input of type Dict(str, Tensor) or "
            f"input(s) of type Tensor or List[str] are supported: '{path}' has it as '{declared.name}'"
        )
    optional = declared.has_default_value()
    default = declared.default_value if optional else None
    return Argument([declared.name], kind == _STRINGS, not optional, default)


def _writes(method: Any) -> bool:
    """Whether the method changes its inputs, or the state of its module, where it may keep inputs."""
    try:
        graph = method.inlined_graph
        aliases = graph.alias_db()
        values: List[Any] = list(graph.inputs())
        return any(aliases.has_writers(value) for value in values)
    except Exception:  # versions of torch that cannot tell
        return True


def load_exported(torch: Any, path: str, tensors: Tensors, gpu: Optional[str]) -> TorchProgram:
    """A program as torch.export.save writes it. Raises Refusal, and what torch raises.

    It runs on this `gpu`; None for where it was exported.
    """
    export = import_package("torch.export", "pytorch")
    with nothing_executable(path):
        exported = export.load(path)
    if gpu is not None:
        exported = import_package("torch.export.passes", "pytorch").move_to_device_pass(exported, gpu)
    signature = exported.graph_signature
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    inputs = _described(path, signature.user_inputs, values, tensors)
    outputs = _described(path, signature.user_outputs, values, tensors)
    spec = exported.call_spec
    return TorchProgram(
        _Call(torch, exported.module(), spec.in_spec, spec.out_spec),
        _arguments(torch, spec.in_spec, inputs, signature.user_inputs),
        _results(torch, spec.out_spec, outputs),
        writes_inputs=bool(signature.user_inputs_to_mutate or signature.buffers_to_mutate),
    )


def load_compiled(torch: Any, path: str, gpu: Optional[str]) -> TorchProgram:
    """A package of AOTInductor, which is compiled for a CPU or for GPUs. Raises Refusal, and what torch raises."""
    inductor = import_package("torch._inductor", "pytorch")
    place = {} if gpu is None else {"device_index": torch.device(gpu).index}
    compiled = inductor.aoti_load_package(path, **place)
    in_spec, out_spec = (torch.utils._pytree.treespec_loads(text) for text in compiled.loader.get_call_spec())
    return TorchProgram(
        _Call(torch, compiled, in_spec, out_spec),
        _arguments(torch, in_spec, None, ()),
        _results(torch, out_spec, None),
    )


class _Call:
    """Calls a program with a flat list of tensors, and returns the tensors of its result as a flat list."""

    def __init__(self, torch: Any, function: Any, in_spec: Any, out_spec: Any) -> None:
        self._pytree = torch.utils._pytree
        self._function = function
        self._in_spec = in_spec
        self._is_tensor = out_spec.num_leaves == 1 and not out_spec.num_nodes > 1

    def __call__(self, *leaves: Any) -> List[Any]:
        arguments, keywords = self._pytree.tree_unflatten(leaves, self._in_spec)
        result = self._function(*arguments, **keywords)
        if self._is_tensor:
            return [result]
        found: List[Any] = self._pytree.tree_leaves(result)
        return found


def _described(path: str, names: Sequence[Any], values: Dict[str, Any], tensors: Tensors) -> List[Optional[TensorInfo]]:
    infos: List[Optional[TensorInfo]] = []
    for name in names:
        value: Any = values.get(name) if isinstance(name, str) else None
        shape = getattr(value, "shape", None)
        if shape is None:
            raise Refusal(f"'{path}' takes or returns {name!r}, which is no tensor: export it with tensors only")
        number = tensors.number_of(value.dtype)
        if number is None:
            kind = f"of type {value.dtype}, which has no counterpart among the data types of the server"
            raise Refusal(f"'{path}' has '{name}' {kind}")
        infos.append(TensorInfo(name, number, [dim if isinstance(dim, int) else -1 for dim in shape]))
    return infos


def _arguments(
    torch: Any, spec: Any, infos: Optional[Sequence[Optional[TensorInfo]]], names: Sequence[str]
) -> List[Argument]:
    arguments, keywords = torch.utils._pytree.tree_unflatten(range(spec.num_leaves), spec)
    places = [place for place, _ in _leaves(arguments, "ARGS")] + [place for place, _ in _leaves(keywords, "KWARGS")]
    return [
        Argument([*names[at : at + 1], place], info=None if infos is None else infos[at])
        for at, place in enumerate(places)
    ]


def _results(torch: Any, spec: Any, infos: Optional[Sequence[Optional[TensorInfo]]]) -> List[Argument]:
    result = torch.utils._pytree.tree_unflatten(range(spec.num_leaves), spec)
    return [
        Argument([place], info=None if infos is None else infos[at])
        for at, (place, _) in enumerate(_leaves(result, "RESULT"))
    ]


def _leaves(tree: Any, place: str) -> Iterator[Tuple[str, Any]]:
    """Each leaf of dicts and lists within one another, with its place in them."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{place}[{key}]")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{place}[{index}]")
    else:
        yield place, tree


_HARMLESS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
}

# The file that is being loaded, empty for none. A hook cannot be removed, so there is one for all files.
_loading = [""]
_installed = [False]


@contextlib.contextmanager
def nothing_executable(path: str) -> Iterator[None]:
    """Within it, unpickling more than tensors raises Refusal."""
    if not _installed[0]:
        _installed[0] = True
        sys.addaudithook(_on_audit)
    _loading[0] = path
    try:
        yield
    finally:
        _loading[0] = ""


def _on_audit(event: str, arguments: Tuple[Any, ...]) -> None:
    if event == "pickle.find_class" and _loading[0] and arguments not in _HARMLESS:
        name = ".".join(map(str, arguments))
        raise Refusal(f"'{_loading[0]}' has a pickle in it that asks for {name}: nothing executable is unpickled")


def load_module(
    torch: Any, path: str, model: str, options: TorchOptions, device: str, log: Callable[[str], None]
) -> TorchProgram:
    """A module that runs on `device`. Raises Refusal, and whatever the file's code raises."""
    kind = _class_of(torch, _import(path, model), path, log)
    module = kind()
    weights = os.path.splitext(path)[0] + ".pt"
    if os.path.isfile(weights):
        _read_weights(torch, module, weights)
    else:
        log(f"there is no '{weights}': the module has the weights that it makes itself")
    module.to(device).eval()
    if options.compile is not None:
        module = torch.compile(module, **options.compile)
    return TorchProgram(module, in_order=True, explains=False)


def _import(path: str, model: str) -> Any:
    version_dir = os.path.dirname(path)
    # As in the Python backend, the model can import files beside this one and beside the version folder.
    sys.path += [version_dir, os.path.dirname(version_dir)]
    spec = importlib.util.spec_from_file_location(model, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[model] = module
    spec.loader.exec_module(module)
    return module


def _class_of(torch: Any, module: Any, path: str, log: Callable[[str], None]) -> Any:
    """The first class in alphabetical order, as in upstream, but classes of the file itself go before imported ones."""
    values = [value for _, value in sorted(vars(module).items()) if isinstance(value, type)]
    classes: List[Any] = [value for value in values if issubclass(value, torch.nn.Module)]
    own = [kind for kind in classes if kind.__module__ == module.__name__] or classes
    if not own:
        raise Refusal(f"Cannot find a subclass of torch.nn.Module in '{path}'")
    if len(own) > 1:
        names = ", ".join(kind.__name__ for kind in own)
        log(f"'{path}' has several modules ({names}): the first one is served, {own[0].__name__}")
    return own[0]


def _read_weights(torch: Any, module: Any, path: str) -> None:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).partition("\n")[0]  # the rest is advice to read the file all the same
        raise Refusal(
            f"'{path}' cannot be read as weights; nothing else is unpickled, because that runs code, and "
            f"`torch.save(model.state_dict(), ...)` writes nothing else: {first}"
        ) from None
    try:
        module.load_state_dict(weights)
    except Exception as error:
        raise Refusal(f"the weights in '{path}' are not those of {type(module).__name__}: {error}") from None
