"""The tools beside the server: `stubserve check`, `stubserve env build`, `stubserve env check`.

Each module has `run(words)`, which takes the words behind the command's name and returns the exit code. They are parsed
by argparse: a handful of ordinary options needs no more. (`stubserve serve` parses Triton's flags by a table of its
own, because their spelling, their repetition and their errors are Triton's.) On a terminal the output is laid out for
reading; into a file or a pipe goes plain text, one finding per line.
"""
