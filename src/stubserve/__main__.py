"""`python -m stubserve` is the command `stubserve`."""

from stubserve.cli import main

main()
