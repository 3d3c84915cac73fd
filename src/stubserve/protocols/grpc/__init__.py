"""KServe's v2 protocol over gRPC.

`service` knows the RPCs, a transport knows HTTP/2; what passes between them is in `transport`: raw messages, callbacks.
"""
