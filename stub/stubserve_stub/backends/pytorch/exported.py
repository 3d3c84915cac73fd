"""Loads what torch.export makes: programs, and the libraries that AOTInductor compiles them to.

Both take and return whatever the model's `forward` does, tensors in tuples, lists and dictionaries. The tensors have
names by where they are, as in Triton: `ARGS[0]`, `ARGS[2][key]`, `KWARGS[k]`; `RESULT`, `RESULT[0]`, `RESULT[k][0]`.
Their order is that of these structures.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from stubserve_stub.backends.loading.contract import TensorInfo
from stubserve_stub.backends.loading.packages import import_package
from stubserve_stub.backends.pytorch.program import Argument, Program
from stubserve_stub.backends.pytorch.tensors import Tensors
from stubserve_stub.backends.pytorch.unpickling import nothing_executable
from stubserve_stub.runtime.failure import Refusal


def load_exported(torch: Any, path: str, tensors: Tensors) -> Program:
    """A program as torch.export.save writes it. Raises Refusal, and what torch raises."""
    export = import_package("torch.export", "pytorch")
    with nothing_executable(path):
        exported = export.load(path)
    signature = exported.graph_signature
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    inputs = _described(path, signature.user_inputs, values, tensors)
    outputs = _described(path, signature.user_outputs, values, tensors)
    spec = exported.call_spec
    return Program(
        _Call(torch, exported.module(), spec.in_spec, spec.out_spec),
        _arguments(torch, spec.in_spec, inputs, signature.user_inputs),
        _results(torch, spec.out_spec, outputs),
        writes_inputs=bool(signature.user_inputs_to_mutate or signature.buffers_to_mutate),
    )


def load_compiled(torch: Any, path: str) -> Program:
    """A package of AOTInductor. Raises Refusal, and what torch raises."""
    inductor = import_package("torch._inductor", "pytorch")
    compiled = inductor.aoti_load_package(path)
    in_spec, out_spec = (torch.utils._pytree.treespec_loads(text) for text in compiled.loader.get_call_spec())
    return Program(
        _Call(torch, compiled, in_spec, out_spec),
        _arguments(torch, in_spec, None, ()),
        _results(torch, out_spec, None),
    )


class _Call:
    """Calls a program with its tensors in a row, and returns those of its result in a row."""

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
        value = values.get(name) if isinstance(name, str) else None
        shape = getattr(value, "shape", None)
        if shape is None:
            raise Refusal(
                "'{}' takes or returns {!r}, which is no tensor: export it with tensors only".format(path, name)
            )
        number = tensors.number_of(value.dtype)  # type: ignore[union-attr]
        if number is None:
            raise Refusal(
                "'{}' has '{}' of type {}, which has no counterpart among the data types of the server".format(
                    path,
                    name,
                    value.dtype,  # type: ignore[union-attr]
                )
            )
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
            yield from _leaves(value, "{}[{}]".format(place, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, "{}[{}]".format(place, index))
    else:
        yield place, tree
