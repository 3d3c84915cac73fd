"""The metrics of GPUs (`--allow-gpu-metrics`), which a process of its own reads (`program`)."""
