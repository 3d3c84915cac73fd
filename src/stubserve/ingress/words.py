"""Words of a worker's segment beside those of its rings (`stubserve_stub.wire.layout`)."""

# The owner's: the number of its registry's state, and how many changes there have been to clients' regions
STATE = 17
REGIONS = 18
# The worker's: how many of its connections have been closed
CLOSED = 16
