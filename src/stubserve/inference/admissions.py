"""What a signature has admitted before, so that requests of the same form need no second look.

Two kinds of forms are remembered, each kind in a table of its own in the signature's memo, which dies with it: what a
client's description means (`protocols.plan`), by its bytes, and what a model calls others with, by names, types, shapes
and sizes. A table holds FORMS of them; then the oldest goes for the next one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from stubserve.inference.admission import admit
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature

FORMS = 256

Key = TypeVar("Key", bound=Hashable)
Form = TypeVar("Form")


def remember(forms: dict[Key, Form], key: Key, form: Form) -> None:
    """Adds the form of an admitted request to its table."""
    if len(forms) >= FORMS:
        del forms[next(iter(forms))]
    forms[key] = form


def admit_as_before(request: Request, signature: Signature) -> None:
    """As `admit`, which a request of a form that was admitted before need not pass again. Its shapes are tuples."""
    sizes: dict[Any, int] = signature.memo.setdefault("calls", {})
    names = request.requested_outputs
    key = (
        None if names is None else tuple(names),
        tuple([(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs]),
    )
    batch_size = sizes.get(key)
    if batch_size is not None:
        request.batch_size = batch_size
        request.admitted = True
        return
    admit(request, signature)
    if signature.repeats:
        remember(sizes, key, request.batch_size)
