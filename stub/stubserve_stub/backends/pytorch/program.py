"""A loaded model, whatever it was loaded from: something to call, and its arguments."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

from stubserve_stub.backends.loading.contract import TensorInfo


class Argument(NamedTuple):
    """One argument, or one result. `names` all mean it; the first one is for errors.

    With `strings` it is a list of strings. What is not `required` is `default` where it is not given. `info` is what
    the file says of the tensor, None where it says nothing.
    """

    names: Sequence[str]
    strings: bool = False
    required: bool = True
    default: Any = None
    info: Optional[TensorInfo] = None


class Program(NamedTuple):
    """A loaded model. `call` takes the arguments in their order and returns what the model does.

    `takes_dict`: there is one argument, a dictionary of tensors, and the inputs' names are its keys. `arguments` and
    `results` are None where nobody knows them before the model runs; `in_order` says that names mean nothing, and the
    order of the configuration all. With `writes_inputs` it may write to them, or keep them. `explains` is False for
    code whose own traceback says best what was wrong.
    """

    call: Callable[..., Any]
    arguments: Optional[Sequence[Argument]] = None
    results: Optional[Sequence[Argument]] = None
    takes_dict: bool = False
    in_order: bool = False
    writes_inputs: bool = True
    explains: bool = True
