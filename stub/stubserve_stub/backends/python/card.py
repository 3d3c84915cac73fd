from __future__ import annotations

from stubserve_stub.backends.card import Card, ModelFile

CARDS = (
    Card(
        "python",
        "stubserve_stub.backends.python.backend:PythonBackend",
        files=(ModelFile("model.py"),),
        lone_endings=(".py",),
        in_environments=True,
    ),
)
