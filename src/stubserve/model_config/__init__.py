"""Model configuration: `config.pbtxt` to a `ModelConfig` that is parsed, completed, validated and rendered.

`proto` holds the message, `parse` reads it, `complete` adds upstream's defaults, and `validate` (with `validate_io`,
and the `problems` of sequences and of ensembles) refuses what Triton refuses. `render` writes the JSON for clients and
models, adopts the result of `auto_complete_config`, and answers the metadata endpoints.
"""
