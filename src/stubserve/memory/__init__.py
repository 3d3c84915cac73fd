"""The server's memory, and how much of it each part holds: one arena, one account, one limit (`--shm-limit`).

`server_memory` is the whole. `blocks` has what is allocated and freed, and what tensors lie in. `stub_memory` keeps the
accounts of one stub's segment, and `reclaim` asks stubs for memory that they do not use. `heap_account` counts what
requests keep in the parent's own heap. `client_regions` and `device_regions` are memory that clients share, and
`device_pools` is memory of GPUs that stubs share.
"""
