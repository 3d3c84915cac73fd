"""Shared by backends that load a file: reading the configuration, finding the package, looking at the file."""
