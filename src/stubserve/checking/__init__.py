"""Finds what is wrong with a repository without serving it: by the checks of a load, with the same texts."""
