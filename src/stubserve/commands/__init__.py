"""The tools beside the server: every command of `stubserve` but `serve`, each in the module of its name.

Such a module has `run(words)`, which takes the words behind the command's name and returns the exit code. argparse
parses them. (`stubserve serve` parses Triton's flags by a table of its own, because their spelling, repetition and
errors are Triton's.) On a terminal the output is laid out for reading; a file or a pipe gets plain text, one finding
per line.
"""
