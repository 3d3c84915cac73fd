"""Shows on a machine with a GPU which of the promises of docs/gpu.md hold."""
