"""Several processes that take HTTP in, for one that owns the models (`--http-workers`).

The *owner* is the server as it is without this: repository, schedulers, stubs, gRPC, metrics, and a whole HTTP front
end. A *worker* is a process of the same program that has connections and nothing else. It is to the owner what a stub
is whose model calls other models: a submitter with a segment of the arena and rings of its own.

The rule that keeps it small: **a worker does what it is sure of, and passes on the rest.** It is sure of `infer` and
`generate` of a model that the owner has described to it. Such a request it reads, checks and writes into the arena; the
owner gets a message that says where the tensors lie, and the answer comes back in the same way. Everything else
(unknown models, metadata, statistics, health, streams, model control, settings) goes to the owner byte for byte, over a
socket pair that is made for that one request, and what comes back goes to the client byte for byte (`passing_on`). So
there is one place for each answer.

What follows from it:

- The owner accepts connections and hands each to the worker with the fewest (`workers`). So they are evenly shared,
  whoever has asked comes in first, as ever (`protocols.entrance`), and the port is the owner's: with it both are gone.
  While no worker runs, connections are the owner's own.
- A description is good for one state of the registry. The owner counts its states in a word of the worker's segment,
  and a worker that finds another number there forgets what it knows (`catalogue`). So a request that follows the answer
  to a load meets the new model, whichever worker each of them went through.
- Clients' shared memory is the owner's to open. Workers have copies of its list, and of the descriptors, and a word of
  their segments tells them when they are behind (`region_news`, `regions`).
- The owner finds the model, queues, counts, traces and limits each request as if it had come in by itself. What the
  worker has found out is only whether the request fits the description.
- A worker's memory is a stub's: granted by the owner, counted in its ledger, and given back when it dies
  (`instances.stub_memory`). The worker is started anew; its requests are cancelled like those of clients that left.
- A worker whose messages make no sense is ended, as a stub is. Workers are trusted to read, not to be right.

`worker_calls`, `worker`, `workers`, `region_news` and `passed_requests` are the owner's; `process`, `line`, `memory`,
`catalogue`, `regions` and `passing_on` the worker's; `messages` is what they say to each other.
"""
