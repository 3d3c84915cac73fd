"""KServe's v2 protocol over gRPC.

`service` has the RPCs, a transport speaks HTTP/2, and `transport` is what passes between them: raw messages, callbacks.
`http2` is the usual transport (`http2.connection` says why), `aio_transport` that of `--grpc-transport=grpcio`.
grpcio's synchronous server needs a thread per RPC and cannot receive messages into the arena.
"""
