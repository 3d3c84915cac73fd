"""Servers on many machines as one: what `stubserve.ray_serve` runs.

A fleet has three kinds of actors, in an application with the fronts and one for each group of models:

- A replica of a group is a `stubserve serve` of its own, with HTTP and gRPC.
- A front, at most one a node, has the address of all. An HAProxy sends each request to a replica; what concerns all
  replicas (loads, statistics, settings) it sends to `fan_out`, which asks each of them.
- The directory is one actor that knows which replicas there are, and which models were loaded by request.

What it guarantees: a request that a replica may have begun is never sent again. A sequence stays with its replica, also
while replicas come and leave; if that replica dies, the next request is refused, never answered from a fresh state.
A replica gets its first request only after it has made all loads that others made by request. A sequence that is under
way keeps its place in the fronts' tables, whatever other clients send.

What it costs: HAProxy is one more hop, of some 0.1 ms. A front learns of a new replica within a second, and of a dead
one by three checks, half a second apart; meanwhile a request that cannot be delivered to it goes to another one.
"""
