"""Model configuration: `config.pbtxt` to a `ModelConfig` that is parsed, completed, validated and rendered.

`proto` holds the message, `parse` reads it, `complete` fills in what upstream fills in, `validate` (with `validate_io`,
`validate_sequence`, `validate_ensemble`) refuses what upstream refuses, `render` writes the JSON that clients and
models see and takes back what `auto_complete_config` returned, and answers the metadata endpoints.
"""
