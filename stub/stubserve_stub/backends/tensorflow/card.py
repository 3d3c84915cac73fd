from __future__ import annotations

from stubserve_stub.backends.card import FILE, FOLDER, Card, ModelFile

# Triton's names and files. stubserve has no such backend.
CARDS = (
    Card(
        "tensorflow",
        files=(
            ModelFile("model.savedmodel", "tensorflow_savedmodel", FOLDER),
            ModelFile("model.graphdef", "tensorflow_graphdef", FILE),
        ),
        needs_file=True,
        instances_on_cpu=2,
    ),
)
