"""Words of a worker's segment beside those of its rings (`stubserve_stub.wire.layout`)."""

# The owner's: the number of its registry's state
STATE = 17
# The worker's: how many of its connections have been closed
CLOSED = 16
