"""Where everything lies in the arena: named offsets, in bytes.

The arena is one sparse file without a name. It begins with the ledger; behind it follow segments of equal span, one
for what comes in over the network (segment 0, written by the parent) and one per instance (written by its stub)::

    ledger   | segment 0        | segment 1                                             | ...
    words    | header heap      | header  request ring  response ring  answer ring  heap |

A tensor anywhere is (offset in the arena, nbytes). Which segment an offset belongs to follows from arithmetic.
Numbers are native 64-bit words: the arena never leaves the machine.
"""

from __future__ import annotations

WIRE_VERSION = 3

PAGE = 4096

# Ledger: one word per segment with the bytes that the segment has committed, behind four words of head.
LEDGER_BYTES = 1 << 20
LEDGER_HEAD_WORDS = 4
LEDGER_VERSION = 0
LEDGER_LIMIT = 1
LEDGER_SPAN = 2

# Segment: a header page, then (in an instance's segment) the three rings, then the heap.
HEADER_BYTES = PAGE
RING_BYTES = 128 * 1024
REQUEST_RING = HEADER_BYTES
RESPONSE_RING = REQUEST_RING + RING_BYTES
ANSWER_RING = RESPONSE_RING + RING_BYTES
HEAP = ANSWER_RING + RING_BYTES

# Words in a segment's header page: the health of the stub that writes it.
HEALTH_STATE = 0
HEALTH_SINCE_NS = 1
HEALTH_BATCH = 2

# Words there that the parent writes, hints for a stub that looks before it sleeps (`stubserve_stub.runtime.patience`):
# how many records it has announced, whether the request that it announced last was alone in the server, and how many
# answers to requests of the stub's model it has announced.
ANNOUNCED = 3
ALONE = 4
ANSWERED = 5

# The levels of a model's lines that the parent logs, as bits: a change counts from the next line on.
LOG_LEVELS = 6

# A tensor up to this size travels inside its message: cheaper than an allocation and a view.
INLINE_BYTES = 1024

# Tensors begin at multiples of this (a cache line; also what SIMD loads like).
ALIGNMENT = 64
