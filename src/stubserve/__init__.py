"""stubserve serves a Triton model repository from plain Python processes.

The layers, outermost first; imports only ever point to the right::

    cli ▶ server ▶ protocols ▶ inference ◀ schedulers ◀ instances
                     repository ▶ model_config

`inference` is the vocabulary that everybody shares and imports nobody. `server` wires the parts and is imported by
no part. The wire code that parent and stub have in common (arena, ring, messages) lives in `stubserve_stub.wire`.
"""

__version__ = "0.1.0"
