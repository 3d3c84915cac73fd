from __future__ import annotations

from stubserve_stub.backends.card import FILE, ON_CPUS, Card, ModelFile

CARDS = (
    Card(
        "llamacpp",
        "stubserve_stub.backends.llamacpp.backend:LlamaCppBackend",
        files=(ModelFile("model.gguf", shape=FILE),),
        lone_endings=(".gguf",),
        in_environments=True,
        devices=ON_CPUS,
        package="xllamacpp",
        extra="llamacpp",
        checks_config="stubserve_stub.backends.llamacpp.options:validate",
        checks_files="stubserve_stub.backends.llamacpp.options:file_problems",
    ),
)
