"""KServe's v2 protocol over gRPC.

`service` knows the RPCs, a transport knows HTTP/2; what passes between them is in `transport`: raw messages, callbacks.
`http2` is the usual transport (`http2.connection` says why), `aio_transport` the one of `--grpc-transport=grpcio`.
grpcio's synchronous server needs a thread for every RPC, and its messages cannot be received into the arena.
"""
