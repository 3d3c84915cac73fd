"""The flags of `stubserve serve`: their names, values and settings, and how a command line becomes settings."""

from stubserve.flags.arguments import parse_arguments as parse_arguments
from stubserve.flags.arguments import usage as usage
