"""The process around a backend: the worker's loop, the rings, the control socket, memory that a batch was given."""
