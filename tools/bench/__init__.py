"""Measures stubserve beside real Triton: one machine, one repository, the same requests. `python -m tools.bench`.

With `--rivals` what a Python user would pick instead takes part too; `rivals/` says how that is kept fair.

How it stays honest:

- Both servers read the same folder of models and get the same bytes, from the same client, seconds apart. Within a
  round they take turns on each workload, and who goes first changes with every round, so that a machine that slows
  down or warms up does so for both. Medians over the rounds are compared; the table shows the range beside them.
- Both run from beginning to end. Starting them for every measurement would leave out what only shows with time (memory
  that grows, caches that fill) and would mostly measure Python's imports. It is sound because the one that waits costs
  nothing: real Triton spends under 10 ms of CPU in 5 s of waiting, below what the kernel's clock shows, and the table's
  `idle` rows say how it was in this very run.
- Before anything is timed, one request of every workload is sent to each server and its answer compared value by
  value. While the clock runs, every answer must have an HTTP status below 400 and the answers together must be as long
  as right ones would be. Anything else ends the benchmark: a fast wrong answer is not a figure.
- The client shares the machine's cores with the servers, as it does for anybody who runs this on a laptop. Figures from
  a machine with more cores, or with the client elsewhere, are higher for both.
- gRPC and event streams have clients of our own (`http2_client`, `event_client`), because those that exist cost more
  processor time than the servers they measure. They count what they receive and check no more than that it is whole.
- All clients send the next request when the answer to the last one is there (closed loop): percentiles are those of a
  client that waits its turn, not of one that arrives at a fixed rate.
"""
