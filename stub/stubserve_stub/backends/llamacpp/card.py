from __future__ import annotations

from stubserve_stub.backends.card import FILE, ON_CPUS, Card, ModelFile, Parameter

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
        parameters=(
            Parameter("n_parallel", "integer", "Answers at the same time; further requests wait in the server (4)."),
            Parameter("n_ctx", "integer", "Tokens of context, which the requests under way share (the model's own)."),
            Parameter("n_batch", "integer", "Tokens of a prompt that are read at a time (llama.cpp's choice)."),
            Parameter("n_ubatch", "integer", "Tokens that are computed at a time (llama.cpp's choice)."),
            Parameter("n_threads", "integer", "Threads (the instance's share of the cores)."),
            Parameter("n_gpu_layers", "integer", "Layers on a GPU, where the package has support for one (0)."),
            Parameter(
                "lora",
                "files",
                "Adapters in the version's folder, with commas; behind a colon a scale that is not 1 (none).",
            ),
            Parameter("embedding", "0 or 1", "Whether the model gives embeddings in place of texts (0)."),
            Parameter("pooling", "none, mean, cls, last or rank", "How tokens become one embedding (the model's own)."),
            Parameter("chat_template", "text", "A template for chats in Jinja (the model's own)."),
        ),
    ),
)
