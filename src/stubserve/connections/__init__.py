"""What holds for the connections of all protocols: sockets, TLS, slow clients, limits, and long work on the event loop.

Slow clients hold memory only as long as nobody else needs it (`arrival`, `slow_clients`). Long work is done in steps or
elsewhere (`inference.long_work`), so nobody waits for another client's large request.
"""
