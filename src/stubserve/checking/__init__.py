"""Finds what is wrong with a repository without serving it.

`repository` makes the checks of a load, with the same texts.
"""
