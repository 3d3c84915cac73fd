"""The process around a backend: the main loop, the rings, the control socket, memory that a batch was given."""
