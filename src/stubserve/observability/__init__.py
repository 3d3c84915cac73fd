"""What people and programs see of a server: the log, the metrics, and traces.

Requests pay little for it. Metrics are made from the statistics when they are read. Traces consist of times that a
request has anyway, for one request of every n. A thread writes the log, so nobody waits for it.
"""
