"""Where everything lies in the arena: named offsets, in bytes.

The arena is one sparse file without a name: segments of equal span, one for what comes in over the network (segment 0,
written by the parent) and one per instance. What both sides of an instance write is apart, by whole pages::

    segment 0 | guard | heap: written by the parent
    segment n | guard | words, request ring, answer ring: written by the parent | words, response ring, guard, heap: ...

A stub can write only to the second half of its own segment (`stub_arena`). A guard page, which no process touches,
stops writes that run over an edge. A tensor is (offset in the arena, nbytes); the offset gives the segment. Numbers are
native 64-bit words, because the arena never leaves the machine.
"""

from __future__ import annotations

WIRE_VERSION = 10

PAGE = 4096

# Every segment begins with a page that no process touches.
GUARD_BYTES = PAGE

# An instance's segment: what the parent writes, ...
RING_BYTES = 128 * 1024
PARENT_WORDS = GUARD_BYTES
REQUEST_RING = PARENT_WORDS + PAGE
ANSWER_RING = REQUEST_RING + RING_BYTES
# ... and what the stub writes.
STUB_WORDS = ANSWER_RING + RING_BYTES
RESPONSE_RING = STUB_WORDS + PAGE
HEAP_GUARD = RESPONSE_RING + RING_BYTES
HEAP = HEAP_GUARD + GUARD_BYTES

# The parent's words: how far it has read the response ring; then hints for a stub that looks before it sleeps
# (`runtime.busy_poll`): how many records it has announced, and whether the last request was alone in the server.
RESPONSES_READ = 0
ANNOUNCED = 8
ALONE = 9

# The levels of a model's lines that the parent logs, as bits; a change applies to the next line.
LOG_LEVELS = 16

# The stub's words: how far it has read its two rings; then its health.
REQUESTS_READ = 0
ANSWERS_READ = 1
HEALTH_STATE = 8
HEALTH_SINCE_NS = 9
HEALTH_BATCH = 10
# The last word of the page never changes: a write over the page changes it.
CANARY = 511
CANARY_VALUE = 0x5EED_CA9A_12E5_0B1D

# A tensor up to this size travels inside its message: some copies are cheaper than an allocation, a view, a weak
# reference and a free, by 30 µs of the parent at 8 KiB. With twice that size the stub's time grows.
INLINE_BYTES = 8 * 1024

# At most so many strings of such a tensor travel one by one, because each is an object.
LISTED_STRINGS = 128

# Tensors begin at multiples of this (a cache line; also what SIMD loads like).
ALIGNMENT = 64
