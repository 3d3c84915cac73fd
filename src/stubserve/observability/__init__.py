"""What people and programs see of a server: the log, the metrics, traces, and the status page.

Requests pay little for it. Metrics are made of the statistics when somebody reads them. Traces are made of times that a
request has anyway, for one request of every n. The log is written by a thread, so nobody waits for it.
"""
