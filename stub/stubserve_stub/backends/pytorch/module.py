"""Loads a module in Python: the class in `model.py`, and its weights, which lie beside it under the same name.

As Triton's runtime "model.py", but for what is said in docs/backends.md.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Callable, List, Optional

from stubserve_stub.backends.pytorch.options import Options
from stubserve_stub.backends.pytorch.program import Program
from stubserve_stub.runtime.failure import Refusal

WEIGHTS = ".pt"


def load(torch: Any, path: str, model: str, options: Options, log: Callable[[str], None]) -> Program:
    """Raises Refusal, and whatever the file's code raises."""
    kind = _class_of(torch, _import(path, model), path, log)
    module = kind()
    weights = os.path.splitext(path)[0] + WEIGHTS
    if os.path.isfile(weights):
        _read_weights(torch, module, weights)
    else:
        log("there is no '{}': the module has the weights that it makes itself".format(weights))
    module.to("cpu").eval()
    if options.compile is not None:
        module = torch.compile(module, **options.compile)
    return Program(module, in_order=True, explains=False)


def _import(path: str, model: str) -> Any:
    version_dir = os.path.dirname(path)
    # As for models of the Python backend, files beside this one and beside the version folder can be imported.
    sys.path += [version_dir, os.path.dirname(version_dir)]
    spec = importlib.util.spec_from_file_location(model, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[model] = module
    spec.loader.exec_module(module)
    return module


def _class_of(torch: Any, module: Any, path: str, log: Callable[[str], None]) -> Any:
    """The first one in alphabetical order, as upstream, but those of the file itself go before imported ones."""
    values = [value for _, value in sorted(vars(module).items()) if isinstance(value, type)]
    classes: List[Any] = [value for value in values if issubclass(value, torch.nn.Module)]
    own = [kind for kind in classes if kind.__module__ == module.__name__] or classes
    if not own:
        raise Refusal("Cannot find a subclass of torch.nn.Module in '{}'".format(path))
    if len(own) > 1:
        names = ", ".join(kind.__name__ for kind in own)
        log("'{}' has several modules ({}): the first one is served, {}".format(path, names, own[0].__name__))
    return own[0]


def _read_weights(torch: Any, module: Any, path: str) -> None:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Refusal(
            "'{}' cannot be read as weights; nothing else is unpickled, because that runs code, and "
            "`torch.save(model.state_dict(), ...)` writes nothing else: {}".format(path, _first_lines(error))
        ) from None
    try:
        module.load_state_dict(weights)
    except Exception as error:
        raise Refusal(
            "the weights in '{}' are not those of {}: {}".format(path, type(module).__name__, error)
        ) from None


def _first_lines(error: BaseException) -> Optional[str]:
    """What torch says, without its advice on how to read the file all the same."""
    return str(error).partition("\n")[0]
