"""KServe's v2 protocol over gRPC.

`service` has the RPCs, `http2` is the transport, and `transport` is what passes between them: raw messages, callbacks.
`http2.connection` says why the transport is our own, and not grpcio.
"""
