"""The transport that speaks HTTP/2 itself, on the event loop. `connection` says why there is one."""
