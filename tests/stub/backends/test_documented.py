"""The backend in docs/developing.md does what is said of it there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.wire.options import NO_OPTIONS

from tests.stub.runtime.stub_memory import stub_memory

PAGE = Path(__file__).parents[3] / "docs" / "developing.md"


def test_the_example() -> None:
    found = re.search(r"## Adding a backend\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    backend = names["DoubleBackend"]()
    backend.instance_initialize(InstanceSetup("m_0", {"model_config": "{}"}, ["OUTPUT0"], False))
    array = np.arange(3000, dtype=np.float32)
    with stub_memory() as stub:
        place = stub.give(array.tobytes())
        request: Any = ("", NO_OPTIONS, None, None, [("INPUT0", 11, (3000,), tuple(place))])
        ((error, outputs, _),) = backend.execute(Batch(stub.channel, 1, [request]))
        assert error is None
        ((name, datatype, shape, where),) = outputs
        assert (name, datatype, shape) == ("OUTPUT0", 11, (3000,))
        assert stub.read(where) == (array * 2).tobytes()
