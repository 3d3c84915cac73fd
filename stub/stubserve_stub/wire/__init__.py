"""The shared memory between the parent and its stubs: arena, allocator, ring, messages. Both sides import this code."""
