from __future__ import annotations

from stubserve_stub.backends.card import ON_CPUS, Card, Parameter

CARDS = (
    Card(
        "remote",
        "stubserve_stub.backends.remote.backend:RemoteBackend",
        devices=ON_CPUS,
        answers_one_by_one=True,
        parameters=(
            Parameter("url", "addresses", "http:// or https:// and the host, several with commas."),
            Parameter("model_name", "text", "The model's name there (the same)."),
            Parameter("model_version", "text", "The model's version there (the latest)."),
            Parameter("connections", "integer", "Requests that may be under way; others wait in the server (32)."),
            Parameter("timeout_s", "seconds", "Time that an answer may take (300)."),
            Parameter("patience_s", "seconds", "Time for which a load waits for the other server (0)."),
            Parameter("token_file", "file", "A token that goes with each request (none)."),
        ),
    ),
)
