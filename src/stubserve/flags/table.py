"""All flags that have an effect."""

from stubserve.flags.own import OWN
from stubserve.flags.upstream import UPSTREAM

FLAGS = (*UPSTREAM, *OWN)
