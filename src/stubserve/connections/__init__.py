"""What holds for the connections of all protocols: sockets, TLS, limits, and clients that are slow or idle.

Messages on their way in (`receive_buffers`) and out (`sent_memory`) are counted. Slow clients hold memory only as long
as nobody else needs it (`slow_clients`).
"""
